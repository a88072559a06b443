//! The few figures that stand for many: medians, ratios of pairs, and the cost of growing.

/// A doubling that makes an operation dearer by more than this, in percent, is a knee. Smaller steps are within what
/// rounds differ by on a small machine.
pub const KNEE_PERCENT: f64 = 20.0;

/// The middle value; of an even number of values the mean of the two in the middle. There is no middle of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// What was measured in the same round, divided: whatever the machine did in that round met both.
pub fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

/// By how much the largest value is above the smallest, in percent.
pub fn spread_percent(values: &[f64]) -> f64 {
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(0.0, f64::max);
    if smallest > 0.0 && smallest.is_finite() { (largest / smallest - 1.0) * 100.0 } else { 0.0 }
}

/// One step of growth: how much there was of something, and what an operation cost.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Counters, connections.
    pub size: f64,
    /// CPU seconds per million operations.
    pub cost: f64,
}

/// By how many percent an operation becomes dearer when the size doubles, for each step after the first; steps that
/// are no doublings are converted.
pub fn percent_per_doubling(steps: &[Step]) -> Vec<f64> {
    steps
        .windows(2)
        .map(|pair| {
            let doublings = (pair[1].size / pair[0].size).log2();
            ((pair[1].cost / pair[0].cost).powf(1.0 / doublings) - 1.0) * 100.0
        })
        .collect()
}

/// The first step (by its place in `steps`) where a doubling costs more than [`KNEE_PERCENT`].
pub fn knee(steps: &[Step]) -> Option<usize> {
    percent_per_doubling(steps).iter().position(|percent| *percent > KNEE_PERCENT).map(|before| before + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_in_the_middle() {
        let cases: &[(&[f64], f64)] =
            &[(&[3.0], 3.0), (&[9.0, 1.0, 5.0], 5.0), (&[4.0, 1.0, 2.0, 100.0], 3.0), (&[2.0, 4.0], 3.0)];
        for (values, expected) in cases {
            assert_eq!(median(values), *expected, "{values:?}");
        }
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_median_of_ratios_is_not_the_ratio_of_medians() {
        let (over, under) = ([2.0, 8.0, 8.0], [1.0, 1.0, 2.0]);
        assert_eq!(ratios(&over, &under), [2.0, 8.0, 4.0]);
        assert_eq!(median(&ratios(&over, &under)), 4.0);
        assert_eq!(median(&over) / median(&under), 8.0);
    }

    #[test]
    fn spread_is_between_the_ends() {
        assert_eq!(spread_percent(&[2.0, 3.0, 2.5]), 50.0);
        assert_eq!(spread_percent(&[2.0]), 0.0);
        assert_eq!(spread_percent(&[]), 0.0);
    }

    #[test]
    fn growth_is_told_per_doubling_and_the_knee_is_the_first_dear_one() {
        let steps = |pairs: &[(f64, f64)]| -> Vec<Step> {
            pairs.iter().map(|&(size, cost)| Step { size, cost }).collect()
        };
        let doublings = steps(&[(1.0, 1.0), (2.0, 1.1), (4.0, 1.65), (8.0, 1.65)]);
        let percents: Vec<f64> =
            percent_per_doubling(&doublings).iter().map(|percent| percent.round()).collect();
        assert_eq!(percents, [10.0, 50.0, 0.0]);
        assert_eq!(knee(&doublings), Some(2));
        // Fourfold for 21 % more: 10 % per doubling, no knee.
        let quadrupling = steps(&[(50.0, 1.0), (200.0, 1.21)]);
        assert_eq!(percent_per_doubling(&quadrupling)[0].round(), 10.0);
        assert_eq!(knee(&quadrupling), None);
        assert_eq!(knee(&[]), None);
    }
}
