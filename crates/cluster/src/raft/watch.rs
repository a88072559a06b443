//! A value that many look at and one changes. As tokio's, but that wakes those who wait in an order of chance, and a
//! simulation could not repeat it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use openraft::async_runtime::watch::{RecvError, SendError};
use openraft::async_runtime::{Watch, WatchReceiver, WatchSender};
use openraft::{OptionalSend, OptionalSync};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Notify;

/// See the head of this file.
pub struct InOrder;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    changed: Notify,
}

/// Who changes it.
pub struct Sender<T>(Arc<Shared<T>>);

/// Who looks at it.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl Watch for InOrder {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            changed: Notify::new(),
        });
        (Sender(Arc::clone(&shared)), Receiver { shared, seen: 0 })
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.shared.receivers.fetch_add(1, Ordering::AcqRel);
        Receiver { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<InOrder, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        {
            let mut value = self.0.value.write();
            if !modify(&mut value) {
                return false;
            }
            // Under the lock: who sees the version sees the value.
            self.0.version.fetch_add(1, Ordering::AcqRel);
        }
        self.0.changed.notify_waiters();
        true
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.value.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        Receiver { shared: Arc::clone(&self.0), seen: self.0.version.load(Ordering::Acquire) }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<InOrder, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // Before looking: whatever changes from here on wakes it.
            let notified = self.shared.changed.notified();
            let version = self.shared.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Err(RecvError(()));
            }
            notified.await;
        }
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.value.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.shared.value.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_hears_of_changes_and_of_the_end() {
        let (sender, mut receiver) = InOrder::channel(1);
        let other = sender.clone();
        let waits = tokio::spawn(async move {
            receiver.changed().await.unwrap();
            let seen = *receiver.borrow_watched();
            (seen, receiver.changed().await.is_err())
        });
        tokio::task::yield_now().await;
        assert!(!sender.send_if_modified(|_| false));
        drop(other);
        sender.send(2).unwrap();
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waits.await.unwrap(), (2, true));
    }

    #[test]
    fn nobody_to_tell_is_an_error() {
        let (sender, receiver) = InOrder::channel(1);
        drop(receiver);
        assert!(sender.send(2).is_err());
        assert_eq!(*sender.borrow_watched(), 1);
        let mut late = sender.subscribe();
        assert!(sender.send(3).is_ok());
        assert_eq!(*late.borrow_and_update(), 3);
    }
}
