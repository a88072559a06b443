//! Limits, and amounts set aside.

use super::*;

/// A window stays readable for a second one, so that the one before can be looked at.
pub fn keep_for(frame: &Frame) -> u64 {
    let span_ms = match frame {
        Frame::Sliding { span_ms, .. } | Frame::Fixed { span_ms } => *span_ms,
        // A month and a day.
        Frame::Calendar { .. } => 32 * 24 * 3_600_000,
    };
    span_ms.saturating_mul(2)
}

impl Deciding<'_> {
    /// Bounds leave room for what is set aside.
    pub(super) fn within_holds(&self, add: &Add) -> (Add, Limits) {
        let Outstanding { up, down, .. } = self.outstanding();
        let (up, down) = (clamp(up), clamp(down));
        let (mut add, mut limits) = (*add, self.ruled.limits);
        // What is set aside may leave less than there is: then nothing can be added, and nothing is taken away either.
        let value = self.live.map_or(0, |cell| cell.value);
        let lower = |bound: i64| if up == 0 { bound } else { bound.saturating_sub(up).max(value.min(bound)) };
        let higher =
            |bound: i64| if down == 0 { bound } else { bound.saturating_sub(down).min(value.max(bound)) };
        (add.max, limits.ceiling) = (lower(add.max), lower(limits.ceiling));
        (add.min, limits.floor) = (higher(add.min), higher(limits.floor));
        (add, limits)
    }

    pub(super) fn acquire(&mut self, acquire: &Acquire, payload: &[u8]) -> Verdict {
        let policy = self.ruled.policy;
        let Some(limit) = acquire.limit.or(policy.and_then(|policy| policy.limit)) else {
            return self.refuse(Refusal::NoLimit);
        };
        let asked = match payload {
            [] => None,
            payload => match read_frame(&mut Bytes::new(payload)) {
                Some(frame) => Some(frame),
                None => return self.refuse(Refusal::WrongKind),
            },
        };
        let frame = match self.frame(asked) {
            Ok(frame) => frame,
            Err(refusal) => return self.refuse(refusal),
        };
        let is_soft = acquire.is_soft || policy.is_some_and(|policy| policy.soft);
        let used = match self.within_limit(acquire.amount, limit, is_soft, frame.as_ref()) {
            Ok(used) => used,
            Err(refused) => return refused,
        };
        let is_born = self.live.is_none() && self.body.is_none();
        let kept_ms = self.keeping().map_or(0, |keeping| keeping.keep_ms);
        let longer_ms = frame.as_ref().map(keep_for).filter(|keep_ms| *keep_ms > kept_ms);
        if let (true, Some(frame)) = (is_born, frame.clone()) {
            let keep_ms = longer_ms.unwrap_or(kept_ms);
            self.become_window(&Keeping { frame, keep_ms });
        }
        // All of it or nothing, also where a policy lets additions take what is left.
        self.ruled.limits.saturate = false;
        let mut verdict = self.add(&Add::plain(acquire.amount), &[]);
        if verdict.reply.refusal.is_none() {
            if let (false, Some(keep_ms)) = (is_born, longer_ms) {
                self.happens(Event::Keep(keep_ms));
            }
            // What was just counted is the first to come back where nothing was.
            let after = used + i128::from(acquire.amount);
            verdict.reply.detail = Some(self.quota(after, limit, frame.as_ref()));
        }
        verdict
    }

    /// What is used of a limit, with what is set aside; refuses what it leaves no room for.
    fn within_limit(
        &self,
        amount: i64,
        limit: i64,
        is_soft: bool,
        frame: Option<&Frame>,
    ) -> Result<i128, Verdict> {
        let used = self.used(frame).0 + self.outstanding().up;
        if used + i128::from(amount) <= i128::from(limit) || is_soft {
            return Ok(used);
        }
        let mut verdict = self.refuse(Refusal::OverQuota);
        verdict.reply.detail = Some(self.quota_now(limit, frame));
        Err(verdict)
    }

    /// How much of a limit is used.
    pub(super) fn quota_now(&self, limit: i64, frame: Option<&Frame>) -> Arc<Detail> {
        self.quota(self.used(frame).0 + self.outstanding().up, limit, frame)
    }

    /// This much of a limit is used, and when some of it comes back: counted amounts as the window says, what is set aside when its
    /// time is over.
    fn quota(&self, used: i128, limit: i64, frame: Option<&Frame>) -> Arc<Detail> {
        let (counted, reset_ms) = self.used(frame);
        let first_hold = self.body.as_ref().and_then(|body| body.holds.first_end_of_up(self.now_ms));
        let reset_ms = match first_hold.map(|end_ms| end_ms - self.now_ms) {
            // Where nothing was counted, or nothing comes back of it, that alone counts.
            Some(hold_ms) if counted == 0 || reset_ms == 0 => hold_ms,
            Some(hold_ms) => hold_ms.min(reset_ms),
            None => reset_ms,
        };
        let window_ms = self.window_ms(frame);
        Arc::new(Detail::Quota { used: clamp(used), limit, reset_ms, window_ms })
    }

    /// How long the window of a limit is.
    pub(super) fn window_ms(&self, frame: Option<&Frame>) -> u64 {
        match frame {
            Some(Frame::Sliding { span_ms, .. } | Frame::Fixed { span_ms }) => *span_ms,
            Some(calendar @ Frame::Calendar { .. }) => {
                let window = calendar.window(self.now_ms);
                window.end - window.start
            }
            None => 0,
        }
    }

    /// How the window of a limit is cut: as asked, as far as what the counter keeps can tell; else as the policy says.
    pub(super) fn frame(&self, asked: Option<Frame>) -> Result<Option<Frame>, Refusal> {
        if self.kind() == Kind::Unique {
            return Err(Refusal::WrongKind);
        }
        match (self.keeping(), asked) {
            (own, None) => Ok(own.map(|keeping| keeping.frame)),
            (None, Some(asked)) if self.may_become(&asked) => Ok(Some(asked)),
            (None, Some(_)) => Err(Refusal::WrongKind),
            (Some(own), Some(asked)) => match (own.frame, asked) {
                (Frame::Sliding { bucket_ms, .. }, Frame::Sliding { span_ms, .. }) => {
                    let frame = Frame::Sliding { span_ms, bucket_ms };
                    // The buckets must be fine enough for it, and as many as it needs must fit.
                    if frame.problem().is_none() { Ok(Some(frame)) } else { Err(Refusal::WrongKind) }
                }
                (own, asked) if own == asked => Ok(Some(own)),
                _ => Err(Refusal::WrongKind),
            },
        }
    }

    /// Whether the counter may be born by a limit whose window is cut so. The offsets of a time zone are for a policy to say:
    /// a counter does not keep them.
    pub(super) fn may_become(&self, frame: &Frame) -> bool {
        let is_sum_by_policy = self.ruled.policy.is_some_and(|policy| policy.kind == Some(Kind::Sum));
        let is_elsewhere = matches!(frame, Frame::Calendar { zone, .. } if *zone != Zone::utc());
        self.live.is_none() && !is_sum_by_policy && !is_elsewhere
    }

    pub(super) fn used(&self, frame: Option<&Frame>) -> (i128, u64) {
        let buckets = match self.body.as_ref().map(|body| &body.state) {
            Some(State::Window(_, buckets)) => Some(buckets),
            _ => None,
        };
        match (frame, buckets) {
            (Some(frame), Some(buckets)) => {
                let usage = usage(frame, buckets, self.now_ms);
                (usage.used, usage.reset_ms)
            }
            (Some(frame), None) => (0, usage(frame, &Default::default(), self.now_ms).reset_ms),
            // Without a window nothing comes back by itself.
            (None, _) => (self.live.map_or(0, |cell| i128::from(cell.value)), 0),
        }
    }

    pub(super) fn reserve(&mut self, add: &Add, ttl_ms: u64) -> Verdict {
        if self.kind() == Kind::Unique {
            return self.refuse(Refusal::WrongKind);
        }
        if self.outstanding().count >= HOLDS_MAX {
            return self.refuse(Refusal::TooManyHolds);
        }
        if self.live.is_none() {
            // A counter that is born by it has the value 0, which must be allowed too.
            let zero = self.plain(&Action::Add(Add::plain(0)), &self.ruled.limits);
            if zero.reply.refusal.is_some() {
                return zero;
            }
        }
        if add.delta > 0
            && self.ruled.rules >= RULES_OF_LIMITS
            && let Some(policy) = self.ruled.policy
            && let Some(limit) = policy.limit
        {
            let frame = self.keeping().map(|keeping| keeping.frame);
            if let Err(refused) = self.within_limit(add.delta, limit, policy.soft, frame.as_ref()) {
                return refused;
            }
        }
        // As if it were added, with all that is set aside already.
        let (within, limits) = self.within_holds(&Add { saturate: false, ..*add });
        let verdict = self.plain(&Action::Add(within), &Limits { saturate: false, ..limits });
        if verdict.reply.refusal.is_some() {
            return verdict;
        }
        self.ensure_shape();
        let value = self.live.map_or(0, |cell| cell.value);
        let (limits, now_ms, sequence) = (self.ruled.limits, self.now_ms, self.sequence);
        let mut verdict = born_or_changed(self.live, value, add.expiry, &limits, now_ms, sequence);
        let number = verdict.reply.cell.version;
        let expires_at_ms = self.now_ms.saturating_add(ttl_ms);
        self.happens(Event::Reserve { number, hold: Hold { amount: add.delta, expires_at_ms } });
        verdict.reply.detail = Some(Arc::new(Detail::Hold { number, expires_at_ms }));
        verdict
    }

    /// A counter that is gone, or in another life, or has not come to that number yet, never had such a hold.
    fn why_no_hold(&self, birth: u64, number: u64) -> Refusal {
        let may_have_had = self.live.is_some_and(|cell| cell.birth == birth && number <= cell.version);
        match may_have_had || self.ruled.rules < RULES_OF_HOLDS {
            true => Refusal::HoldEnded,
            false => Refusal::NoHold,
        }
    }

    pub(super) fn end(&mut self, birth: u64, number: u64, ending: Ending) -> Verdict {
        let is_same = self.live.is_some_and(|cell| cell.birth == birth);
        let held = self.body.as_ref().and_then(|body| body.holds.get(number, self.now_ms));
        let (true, Some(hold)) = (is_same, held) else {
            return self.refuse(self.why_no_hold(birth, number));
        };
        let amount = match ending {
            Ending::Void => 0,
            Ending::Commit(None) => hold.amount,
            Ending::Commit(Some(amount)) => amount,
        };
        let is_within = if hold.amount < 0 {
            (hold.amount..=0).contains(&amount)
        } else {
            (0..=hold.amount).contains(&amount)
        };
        if !is_within {
            return self.refuse(Refusal::BeyondHold);
        }
        let value = self.live.map_or(0, |cell| cell.value);
        let Some(value) = value.checked_add(amount) else { return self.refuse(Refusal::Overflow) };
        let now_ms = self.now_ms;
        let tallied = self.values(&[], now_ms).and_then(|values| self.tally(amount, now_ms, values, true));
        if let Err(refusal) = tallied {
            return self.refuse(refusal);
        }
        self.happens(Event::End(number));
        let limits = self.ruled.limits;
        born_or_changed(self.live, value, Expiry::Keep, &limits, self.now_ms, self.sequence)
    }
}
