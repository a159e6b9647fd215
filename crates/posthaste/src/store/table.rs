//! Names of tables: checked once, quoted ever after, never pasted.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result, quoted};

/// Characters of a name: what PostgreSQL's 63 bytes leave after the longest suffix of an index.
const LIMIT: usize = 40;

/// The name of an outbox or inbox table, optionally with its schema: `orders_outbox`, `public.orders_outbox`.
///
/// ```
/// use posthaste::TableName;
///
/// assert!("public.orders_outbox".parse::<TableName>().is_ok());
/// assert!("outbox; DROP TABLE orders".parse::<TableName>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    /// The schema (PostgreSQL) or database (MySQL), where one was named.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The table's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A table beside this one, whose name is known to be safe.
    pub(crate) fn sibling(&self, name: &str) -> Self {
        Self { schema: self.schema.clone(), name: name.to_owned() }
    }

    /// The view that shows each row's status by name.
    pub(crate) fn status_view(&self) -> Self {
        self.sibling(&format!("{}_status", self.name))
    }

    /// The table that says how far a stream's lanes were read.
    pub(crate) fn places_table(&self) -> Self {
        self.sibling(&format!("{}_places", self.name))
    }

    /// The table of a stream's lanes.
    pub(crate) fn lanes_table(&self) -> Self {
        self.sibling(&format!("{}_lanes", self.name))
    }

    /// The table of a stream's relays.
    pub(crate) fn relays_table(&self) -> Self {
        self.sibling(&format!("{}_relays", self.name))
    }

    /// The table of a stream's events that wait.
    pub(crate) fn parked_table(&self) -> Self {
        self.sibling(&format!("{}_parked", self.name))
    }

    /// Quoted for SQL with this quotation mark; no part can contain one.
    pub(crate) fn quoted(&self, mark: char) -> String {
        match &self.schema {
            Some(schema) => format!("{mark}{schema}{mark}.{mark}{}{mark}", self.name),
            None => format!("{mark}{}{mark}", self.name),
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self { schema: None, name: "outbox".to_owned() }
    }
}

impl FromStr for TableName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        if schema.is_none_or(is_identifier) && is_identifier(name) {
            Ok(Self { schema: schema.map(str::to_owned), name: name.to_owned() })
        } else {
            let message = format!("{} is not the name of a table", quoted(text, 80));
            Err(Error::new(ErrorKind::InvalidTableName, message))
        }
    }
}

fn is_identifier(part: &str) -> bool {
    part.len() <= LIMIT
        && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st2_plain_names_are_taken_and_quoted() -> Result<()> {
        let name: TableName = "public.org_outbox".parse()?;
        assert_eq!(name.quoted('"'), "\"public\".\"org_outbox\"");
        assert_eq!("hrm_outbox".parse::<TableName>()?.quoted('`'), "`hrm_outbox`");
        Ok(())
    }

    #[test]
    fn st2_names_that_could_inject_are_refused() {
        let long = "a".repeat(41);
        for text in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "1a",
            "a b",
            "a\"b",
            "a`b",
            "a'b",
            "a;b",
            "a--",
            "a\0",
            "tablé",
            "a\n",
            "$a",
            &long,
            "outbox; DROP TABLE orders",
            "public.\"x\"",
            "x/**/y",
        ] {
            let kind = text.parse::<TableName>().err().map(|e| e.kind().clone());
            assert_eq!(kind, Some(ErrorKind::InvalidTableName), "{text:?}");
        }
    }
}
