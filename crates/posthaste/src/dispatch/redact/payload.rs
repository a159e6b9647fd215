//! What of a text is the event's payload, or a secret header of it.

use std::collections::{HashMap, HashSet};

use super::credentials::is_secret_name;
use super::leaves::{Leaf, leaves};
use super::{Line, Mark, PAYLOAD, SECRET};
use crate::event::Event;

/// So many bytes in a row that are the payload's are taken out, wherever in it they are: a broker that echoes
/// it may cut it short. Values that have fewer are looked for as a whole.
pub(super) const WINDOW: usize = 32;
/// Characters of a string, and digits of a number, from which on it is looked for: shorter ones are as often
/// the error's own words.
const LEAF_LIMIT: usize = 6;
/// Bytes of anything looked for.
const KEY: usize = 4;
/// Bytes of a payload whose list of numbers (`[104, 105]`) is looked for: more than any text that is read
/// holds.
const LIST_LIMIT: usize = 4 * 1024;

/// Every stretch of the text that is the event's payload or a value of it, or of a header that looks secret.
pub(super) fn find(text: &str, event: &Event) -> Vec<Mark> {
    let mut search = Search::new(text.as_bytes());
    if search.starts.is_empty() {
        return Vec::new();
    }
    payload(&mut search, event);
    for (_, value) in event.headers().iter().filter(|(name, _)| is_secret_name(name)) {
        search.look_for(value, SECRET);
        // `Bearer x` and `session=x; theme=y` are told without what stands before them, too.
        for part in value.split([' ', ';', ',']) {
            let part = part.split_once('=').map_or(part, |(_, value)| value);
            if part.len() >= LEAF_LIMIT {
                search.look_for(part, SECRET);
            }
        }
    }
    search.finish()
}

fn payload(search: &mut Search<'_>, event: &Event) {
    let bytes = event.payload().bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            search.look_for(text, PAYLOAD);
            search.look_for_escaped(text);
        }
        Err(_) => {
            search.look_for(&String::from_utf8_lossy(bytes), PAYLOAD);
            search.look_for(&bytes.escape_ascii().to_string(), PAYLOAD);
        }
    }
    if bytes.len() >= KEY {
        let list = format!("{:?}", &bytes[..bytes.len().min(LIST_LIMIT)]);
        search.look_for(list.trim_matches(['[', ']']), PAYLOAD);
    }
    for leaf in event.payload().as_json().into_iter().flat_map(leaves) {
        match leaf {
            Leaf::Text(text) => string(search, text),
            Leaf::Number(text) => number(search, text),
        }
    }
}

/// A string in every form that errors show it in.
fn string(search: &mut Search<'_>, quoted: &str) {
    let is_long = |text: &str| text.chars().nth(LEAF_LIMIT - 1).is_some();
    let written = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(quoted);
    if !is_long(written) {
        return;
    }
    let value: Option<String> = if written.contains('\\') { serde_json::from_str(quoted).ok() } else { None };
    let value = value.as_deref().unwrap_or(written);
    if is_long(value) {
        search.look_for(value, PAYLOAD);
        if value != written {
            search.look_for(written, PAYLOAD);
        }
        search.look_for_escaped(value);
    }
}

/// A number as it was written, and as it is shown once it was read.
fn number(search: &mut Search<'_>, written: &str) {
    let long = |text: &str| text.bytes().filter(u8::is_ascii_digit).count() >= LEAF_LIMIT;
    let number = written.trim_start_matches('-');
    if long(number) {
        search.look_for(number, PAYLOAD);
    }
    if let Some((whole, _)) = number.split_once(['.', 'e', 'E']) {
        let shown = number.parse::<f64>().map(|number| number.to_string()).unwrap_or_default();
        for text in [whole, &shown] {
            if long(text) {
                search.look_for(text, PAYLOAD);
            }
        }
    }
}

/// Looks for any number of values in one text. What it costs grows with the length of the text and of the
/// values, whatever is in them.
struct Search<'t> {
    text: &'t [u8],
    /// Whether anything in it may be escaped.
    has_backslash: bool,
    /// The first bytes of all that could be found.
    starts: HashSet<[u8; KEY]>,
    /// Where each run of [`WINDOW`] bytes is, by its hash, until it has been found.
    windows: HashMap<u64, Vec<usize>>,
    /// Whether there may be one whose hash begins so: spares looking for most.
    beginnings: Vec<bool>,
    /// Values shorter than that, of which at least the first bytes are in the text.
    short: HashMap<Vec<u8>, &'static str>,
    /// Those first bytes, and with a bit for each the lengths there are.
    short_starts: HashMap<[u8; KEY], u32>,
    marks: Vec<Mark>,
}

impl<'t> Search<'t> {
    fn new(text: &'t [u8]) -> Self {
        let mut windows: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut beginnings = vec![false; 1 << BEGINNING_BITS];
        rolling(text, |at, hash| {
            windows.entry(hash).or_default().push(at);
            beginnings[beginning(hash)] = true;
        });
        Self {
            text,
            has_backslash: text.contains(&b'\\'),
            starts: text.windows(KEY).filter_map(|bytes| bytes.try_into().ok()).collect(),
            windows,
            beginnings,
            short: HashMap::new(),
            short_starts: HashMap::new(),
            marks: Vec::new(),
        }
    }

    fn look_for(&mut self, value: &str, instead: &'static str) {
        // On one line, as the text is.
        let line;
        let value = if value.contains(char::is_control) {
            line = Line::from(value);
            line.text.as_bytes()
        } else {
            value.as_bytes()
        };
        if value.len() >= WINDOW {
            rolling(value, |_, hash| {
                // Two runs of the same hash that differ: one too many is taken out, never one too few.
                if self.beginnings[beginning(hash)]
                    && let Some(places) = self.windows.remove(&hash)
                {
                    let mark = |start| Mark { start, end: start + WINDOW, instead };
                    self.marks.extend(places.into_iter().map(mark));
                }
            });
        } else if let Some(start) = value.first_chunk::<KEY>().filter(|start| self.starts.contains(*start)) {
            *self.short_starts.entry(*start).or_default() |= 1 << value.len();
            self.short.entry(value.to_vec()).or_insert(instead);
        }
    }

    /// Looks for what `{:?}` shows of a value, without its quotes.
    fn look_for_escaped(&mut self, value: &str) {
        // It is the value itself otherwise.
        if self.has_backslash {
            let shown = format!("{value:?}");
            self.look_for(&shown[1..shown.len() - 1], PAYLOAD);
        }
    }

    fn finish(mut self) -> Vec<Mark> {
        for (start, key) in self.text.windows(KEY).enumerate() {
            let Some(mut lengths) = self.short_starts.get(key).copied() else {
                continue;
            };
            // The longest first; what is within it needs no mark.
            while lengths != 0 {
                let length = lengths.ilog2() as usize;
                lengths &= !(1 << length);
                let end = start + length;
                let found = self.text.get(start..end).and_then(|bytes| self.short.get(bytes));
                if let Some(instead) = found {
                    self.marks.push(Mark { start, end, instead });
                    break;
                }
            }
        }
        self.marks
    }
}

/// Tells where each run of [`WINDOW`] bytes begins and its hash, made from the one before it.
fn rolling(bytes: &[u8], mut tell: impl FnMut(usize, u64)) {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let gone_factor = FACTOR.wrapping_pow(WINDOW as u32);
    let mut hash = 0u64;
    for (end, byte) in bytes.iter().enumerate() {
        hash = hash.wrapping_mul(FACTOR).wrapping_add(u64::from(*byte) + 1);
        if let Some(gone) = end.checked_sub(WINDOW) {
            hash = hash.wrapping_sub(gone_factor.wrapping_mul(u64::from(bytes[gone]) + 1));
        }
        if let Some(start) = (end + 1).checked_sub(WINDOW) {
            tell(start, hash);
        }
    }
}

const BEGINNING_BITS: u32 = 18;

fn beginning(hash: u64) -> usize {
    (hash >> (u64::BITS - BEGINNING_BITS)) as usize
}
