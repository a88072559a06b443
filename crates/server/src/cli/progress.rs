//! How far long work has come, drawn on stderr where that is a terminal, and nowhere otherwise.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::terminal::print_note;

/// How often a bar that nobody moves is drawn, so that one sees that something happens.
const TICK: Duration = Duration::from_millis(100);

const OF_BYTES: &str = "{prefix} [{bar:30}] {percent}% of {total_bytes}, {msg}, {eta} left";
const OF_COUNTERS: &str = "{prefix} [{bar:30}] {percent}% of {human_len} counters, {eta} left";
const OF_UNKNOWN_LENGTH: &str = "{spinner} {prefix}{msg}, {elapsed}";

/// Work whose length is not known.
pub fn spinner(what: &str, quiet: bool) -> ProgressBar {
    let bar = bar(None, OF_UNKNOWN_LENGTH, quiet);
    bar.set_prefix(what.to_owned());
    bar
}

/// Work through so many bytes; the message says what was found in them.
pub fn bytes(what: &str, total: u64, quiet: bool) -> ProgressBar {
    let bar = bar(Some(total), OF_BYTES, quiet);
    bar.set_prefix(what.to_owned());
    bar
}

/// What began as a [`spinner`] and turns out to be work on so many counters.
pub fn turn_to_counters(bar: &ProgressBar, total: u64) {
    bar.set_length(total);
    set_template(bar, OF_COUNTERS);
}

/// Says something while a bar is drawn, so that neither spoils the other.
pub fn note(bar: &ProgressBar, message: &str) {
    bar.suspend(|| print_note(message));
}

fn bar(total: Option<u64>, template: &str, quiet: bool) -> ProgressBar {
    // Where stderr is no terminal, the library draws nothing.
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(total, target);
    set_template(&bar, template);
    if !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
    bar
}

fn set_template(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
}

#[cfg(test)]
mod tests {
    use super::{OF_BYTES, OF_COUNTERS, OF_UNKNOWN_LENGTH};
    use indicatif::ProgressStyle;

    #[test]
    fn templates_are_sound() {
        for template in [OF_BYTES, OF_COUNTERS, OF_UNKNOWN_LENGTH] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
