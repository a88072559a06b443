//! When something is asked again: after a time drawn between nothing and a bound that doubles (full jitter), and only
//! while retries are few among requests. Chance is an argument.

use std::time::Duration;

/// The bound of the first wait.
const WAIT: Duration = Duration::from_millis(4);
/// No wait is longer.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// How long to wait before the attempt that follows so many. `draw` lies between 0 and 1.
pub fn full_jitter(attempts: u32, draw: f64) -> Duration {
    let bound = WAIT.saturating_mul(1 << attempts.min(16)).min(WAIT_MAX);
    bound.mul_f64(draw.clamp(0.0, 1.0))
}

/// How many retries there may be.
#[derive(Clone, Copy, Debug)]
pub struct BudgetSettings {
    /// For each request so many.
    pub share: f64,
    /// So many at once, whatever came before.
    pub reserve: f64,
}

impl Default for BudgetSettings {
    fn default() -> BudgetSettings {
        BudgetSettings { share: 0.2, reserve: 500.0 }
    }
}

/// What is left for retries: a fleet that asks everything again keeps down what it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    settings: BudgetSettings,
    left: f64,
}

impl Budget {
    /// With its reserve.
    pub fn new(settings: BudgetSettings) -> Budget {
        Budget { settings, left: settings.reserve }
    }

    /// So many requests came.
    pub fn earn(&mut self, requests: usize) {
        self.left = (self.left + self.settings.share * requests as f64).min(self.settings.reserve);
    }

    /// Takes one retry, if there is one left.
    pub fn spend(&mut self) -> bool {
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_are_drawn_from_all_of_it() {
        for (attempts, draw, expected_us) in [
            (0, 1.0, 4_000),
            (0, 0.5, 2_000),
            (1, 1.0, 8_000),
            (3, 0.25, 8_000),
            (6, 1.0, 250_000),
            (u32::MAX, 1.0, 250_000),
            (9, 0.0, 0),
            (9, 7.0, 250_000),
        ] {
            assert_eq!(full_jitter(attempts, draw), Duration::from_micros(expected_us), "{attempts} {draw}");
        }
    }

    #[test]
    fn retries_are_a_share_of_requests() {
        let mut budget = Budget::new(BudgetSettings { share: 0.5, reserve: 2.0 });
        assert!(budget.spend() && budget.spend() && !budget.spend(), "the reserve");
        budget.earn(1);
        assert!(!budget.spend());
        budget.earn(1);
        assert!(budget.spend() && !budget.spend());
        budget.earn(1_000);
        assert!(budget.spend() && budget.spend() && !budget.spend(), "never more than the reserve");
    }
}
