//! Where groups run: on tokio, with chances that a simulation can repeat.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use super::watch::InOrder;
use openraft::TokioRuntime as Tokio;
use openraft::async_runtime::AsyncRuntime;
use openraft::{OptionalSend, TokioInstant};
use rand_openraft::rngs::SmallRng;
use rand_openraft::{Rng, RngExt, SeedableRng};

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on all chances that groups take on this thread come from this seed.
pub fn seed_chances(seed: u64) {
    SEED.set(Some(seed));
}

/// A random time up to this one.
pub fn chance(most: Duration) -> Duration {
    most.mul_f64(Runtime::thread_rng().random())
}

/// See the head of this file.
#[derive(Debug)]
pub struct Runtime(Tokio);

impl AsyncRuntime for Runtime {
    type JoinError = <Tokio as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Tokio as AsyncRuntime>::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = <Tokio as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Tokio as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <Tokio as AsyncRuntime>::Mpsc;
    type Watch = InOrder;
    type Oneshot = <Tokio as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Tokio::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Tokio::sleep(duration)
    }

    fn sleep_until(deadline: TokioInstant) -> Self::Sleep {
        Tokio::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: TokioInstant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        Tokio::is_panic(error)
    }

    fn thread_rng() -> SmallRng {
        let Some(seed) = SEED.get() else { return SmallRng::from_rng(&mut rand_openraft::rng()) };
        let mut drawn = SmallRng::seed_from_u64(seed);
        SEED.set(Some(drawn.next_u64()));
        drawn
    }

    fn new(threads: usize) -> Runtime {
        Runtime(Tokio::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
