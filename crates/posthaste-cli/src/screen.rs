//! Something on the terminal that is drawn again and again, in place.

use std::io::{self, IsTerminal, Write};

/// Whether this is a terminal on which something can be drawn again in place.
pub(crate) fn can_move(out: &impl IsTerminal) -> bool {
    out.is_terminal() && !is_dumb()
}

/// Whether the terminal says that it can do nothing but show text.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// What was drawn last.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    lines: usize,
}

impl Screen {
    /// Draws this text, which ends with a line break, over the one before.
    pub(crate) fn draw(&mut self, out: &mut impl Write, text: &str) -> io::Result<()> {
        // All at once, so that it does not flicker.
        let mut drawn = String::new();
        if self.lines > 0 {
            drawn += &format!("\x1b[{}A\r\x1b[J", self.lines);
        }
        drawn += text;
        self.lines = text.lines().map(rows).sum();
        out.write_all(drawn.as_bytes())?;
        out.flush()
    }
}

/// How many rows of the terminal a line takes.
fn rows(line: &str) -> usize {
    let wide = crossterm::terminal::size().map_or(usize::MAX, |(wide, _)| usize::from(wide).max(1));
    // Colours take no room; whatever else is shown here takes one place for each character.
    let mut shown = 0_usize;
    let mut escaped = false;
    for c in line.chars() {
        match (escaped, c) {
            (false, '\x1b') => escaped = true,
            (true, 'm') => escaped = false,
            (true, _) => {}
            (false, _) => shown += 1,
        }
    }
    shown.div_ceil(wide).max(1)
}
