//! The environment: variables that set a key, and variables that a text in the file names.

use super::key::{KEYS, Key, Secrecy};
use super::kind::{Given, Raw};
use super::origin::Origin;
use super::path::Path;
use super::{Config, Environment, Mistake, nearest};

/// What every variable of this program begins with.
const PREFIX: &str = "OUTBOX_";

/// The variable that names the file.
pub(super) const FILE: &str = "OUTBOX_CONFIG";

/// Sets what the environment says. A variable that is empty is not set.
pub(super) fn read(config: &mut Config, environment: &Environment) {
    for (name, value) in environment.iter().filter(|(name, _)| name.starts_with(PREFIX) && *name != FILE) {
        match KEYS.iter().find(|key| key.variable == Some(name)) {
            Some(_) if value.is_empty() => {}
            Some(key) => set(config, &Path::plain(key.path), key, value, Origin::Variable(name.clone())),
            None => {
                let known = KEYS.iter().filter_map(|key| key.variable).chain([FILE]);
                let near = nearest(name, known).map_or_else(
                    || "it is ignored".to_owned(),
                    |near| format!("it is ignored; did you mean {near}?"),
                );
                config.warnings.push(format!("the variable {name} sets nothing: {near}"));
            }
        }
    }
}

/// Sets a key from a text: a variable's, or a flag's.
pub(super) fn set(config: &mut Config, path: &Path, key: &'static Key, text: &str, origin: Origin) {
    match key.kind.read(&Given { value: Raw::Plain(text), secret: key.secrecy != Secrecy::Open }) {
        Ok(value) => config.insert(path, key, value, None, origin),
        Err(message) => {
            config.refuse(path, Mistake::new(&origin, format!("{path} {message}")));
        }
    }
}

/// A text with the variables that it names in `${NAME}` filled in; `$${` is `${` itself.
pub(super) fn substitute(text: &str, environment: &Environment) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            filled += before;
            filled += "${";
            rest = &from[2..];
            continue;
        }
        let Some((name, after)) = from[2..].split_once('}') else {
            return Err("has a ${ without its }; write ${NAME}, or $${ for the characters".to_owned());
        };
        let Some(value) = environment.get(name).filter(|value| !value.is_empty()) else {
            let name = name.escape_debug();
            return Err(format!("names the environment variable {name}, which is not set; set it"));
        };
        filled += before;
        filled += value;
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op3_a_text_names_variables() {
        let environment =
            Environment::from([("A".to_owned(), "1".to_owned()), ("E".to_owned(), String::new())]);
        for (text, filled) in [("x${A}y${A}", "x1y1"), ("$${A}", "${A}"), ("$A", "$A"), ("a$", "a$")] {
            assert_eq!(substitute(text, &environment).as_deref(), Ok(filled), "{text}");
        }
        for (text, words) in [
            ("${B}", "variable B, which is not set"),
            ("${E}", "variable E"),
            ("${A\tB}", "variable A\\tB, which"),
            ("${A", "without its }"),
        ] {
            assert!(substitute(text, &environment).is_err_and(|error| error.contains(words)), "{text}");
        }
    }
}
