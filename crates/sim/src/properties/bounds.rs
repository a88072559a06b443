//! Bounds are never crossed: checked on every single reply, by nothing but the request, the policy and the reply.

use quipu_counting::{Action, Policy, Reply};

use crate::violation::{Invariant, Violation};

/// Whether an accepted change respects the bounds of its call and of the policy.
pub fn check(action: &Action, policy: &Policy, reply: &Reply) -> Result<(), Violation> {
    if reply.refusal.is_some() || reply.duplicate {
        return Ok(());
    }
    let (before, after) = (reply.previous, reply.cell.value);
    let floor = policy.min.unwrap_or(i64::MIN);
    let ceiling = policy.max.unwrap_or(i64::MAX);
    let holds = match action {
        Action::Add(add) => {
            let within_call = (add.min..=add.max).contains(&after);
            // A counter that lies outside of a policy made later may come back, not go further out.
            let within_policy = (after >= floor || (reply.existed && after >= before))
                && (after <= ceiling || (reply.existed && after <= before));
            within_call && within_policy
        }
        Action::Set(_) => (floor..=ceiling).contains(&after),
        Action::Reset(_) if reply.existed => (floor..=ceiling).contains(&after),
        _ => true,
    };
    if holds {
        return Ok(());
    }
    Err(Violation::new(Invariant::Bounds, format!("{action:?} under {policy:?} answered {reply:?}")))
}
