//! A place in the configuration: `relay.batch`, `tables."shop.outbox".lease`, `routes[0].sink`.

use std::fmt;

/// The way from the top of the file to a value. A place in a list is a step of its own, such as `[0]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Path(Vec<String>);

impl Path {
    /// From its steps.
    pub(crate) fn of<S: Into<String>>(steps: impl IntoIterator<Item = S>) -> Self {
        Self(steps.into_iter().map(Into::into).collect())
    }

    /// A path without names in it, such as `relay.batch`.
    pub(crate) fn plain(dotted: &str) -> Self {
        Self::of(dotted.split('.'))
    }

    /// One step further.
    pub(crate) fn then(&self, step: impl Into<String>) -> Self {
        let mut steps = self.0.clone();
        steps.push(step.into());
        Self(steps)
    }

    /// The place of another key of the same section.
    pub(crate) fn beside(&self, leaf: &str) -> Self {
        let mut steps = self.0.clone();
        steps.pop();
        steps.push(leaf.to_owned());
        Self(steps)
    }

    pub(crate) fn steps(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    pub(crate) fn last(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// Whether it is where a pattern says, such as `sinks.*.url` or `routes[].sink`.
    pub(crate) fn fits(&self, pattern: &str) -> bool {
        let wanted = pattern_steps(pattern);
        wanted.len() == self.0.len() && self.begins(&wanted)
    }

    /// Whether a pattern goes on from here: it is a section of the file.
    pub(crate) fn leads_to(&self, pattern: &str) -> bool {
        let wanted = pattern_steps(pattern);
        wanted.len() > self.0.len() && self.begins(&wanted)
    }

    fn begins(&self, wanted: &[&str]) -> bool {
        self.0.iter().zip(wanted).all(|(step, wanted)| match *wanted {
            "*" => !step.starts_with('['),
            "[]" => step.starts_with('['),
            wanted => step == wanted,
        })
    }

    /// The pattern with this path's names in it, as far as they fit.
    pub(crate) fn fill(&self, pattern: &str) -> Self {
        let mut steps: Vec<String> = pattern_steps(pattern).into_iter().map(str::to_owned).collect();
        for (step, own) in steps.iter_mut().zip(&self.0) {
            if (step == "*" && !own.starts_with('[')) || (step == "[]" && own.starts_with('[')) {
                step.clone_from(own);
            }
        }
        Self(steps)
    }
}

/// The steps of a pattern: `routes[].sink` has three.
pub(crate) fn pattern_steps(pattern: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    for part in pattern.split('.') {
        match part.strip_suffix("[]") {
            Some(name) => steps.extend([name, "[]"]),
            None => steps.push(part),
        }
    }
    steps
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            if at > 0 && !step.starts_with('[') {
                f.write_str(".")?;
            }
            let bare = step.starts_with('[')
                || step == "*"
                || !step.is_empty()
                    && step.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
            if bare { f.write_str(step)? } else { write!(f, "{step:?}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op3_paths_fit_their_patterns() {
        let path = Path::of(["tables", "shop.outbox", "lease"]);
        assert_eq!(path.to_string(), "tables.\"shop.outbox\".lease");
        assert!(path.fits("tables.*.lease") && !path.fits("tables.*") && !path.fits("sinks.*.lease"));
        assert!(Path::of(["tables", "a"]).leads_to("tables.*.lease"));
        let route = Path::of(["routes", "[1]", "sink"]);
        assert_eq!(route.to_string(), "routes[1].sink");
        assert!(route.fits("routes[].sink") && !Path::of(["routes", "a", "sink"]).fits("routes[].sink"));
        assert_eq!(path.fill("sinks.*.url").to_string(), "sinks.\"shop.outbox\".url");
    }
}
