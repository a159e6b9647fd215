//! Progress of long work: a bar on standard error, where that is a terminal.

use std::io;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use posthaste::store::Count;

use crate::screen;

/// How often it moves where nothing happens.
const TICK: Duration = Duration::from_millis(100);

/// A bar towards so many; where they were counted only up to a limit, a number that grows.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins; `doing` is such as `replaying`.
    pub(crate) fn start(doing: &'static str, of: Count) -> Self {
        let length = (!of.capped).then_some(of.n);
        let target = match screen::can_move(&io::stderr()) {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(length, target);
        let style = match length {
            Some(_) => "{msg} [{bar:30}] {human_pos}/{human_len} ({per_sec}, {eta} left)",
            None => "{spinner} {msg} {human_pos} ({per_sec}, {elapsed})",
        };
        // A template that cannot be read leaves the plain bar.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(doing);
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// What to tell how many are done.
    pub(crate) fn told(&self) -> impl Fn(u64) + Send + Sync + 'static {
        let bar = self.0.clone();
        move |done| bar.set_position(done)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
