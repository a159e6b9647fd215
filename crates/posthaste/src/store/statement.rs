//! SQL text rendered once for a table, shared by every execution of it.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

use super::{Dialect, TableName, migrate};
use crate::planted;

/// One statement for one table.
#[derive(Debug, Clone)]
pub(crate) struct Statement(Arc<str>);

impl Statement {
    /// Renders a constant of this crate; the table's name is the only thing put into it, and it is checked
    /// and quoted.
    pub(crate) fn new(dialect: Dialect, table: &TableName, sql: &'static str) -> Self {
        Self(migrate::render(dialect, table, &planted::spoilt(sql)).into())
    }

    /// Puts another constant of this crate in the place of a placeholder.
    #[must_use]
    pub(crate) fn with(self, placeholder: &'static str, sql: &'static str) -> Self {
        Self(self.0.replace(placeholder, sql).into())
    }

    /// Puts a part that was rendered for the same table in the place of a placeholder.
    #[must_use]
    pub(crate) fn with_rendered(self, placeholder: &'static str, part: &Self) -> Self {
        Self(self.0.replace(placeholder, &part.0).into())
    }

    /// Puts a list of columns in the place of `{columns}`, each as one of the table of this alias.
    #[must_use]
    pub(crate) fn with_columns_of(self, alias: &'static str, columns: &'static str) -> Self {
        let columns: Vec<String> =
            columns.split(',').map(|column| format!("{alias}.{}", column.trim())).collect();
        Self(self.0.replace("{columns}", &columns.join(", ")).into())
    }

    /// Statements rendered before, joined into one.
    pub(crate) fn joined(parts: &[&str]) -> Self {
        Self(parts.concat().into())
    }

    /// For sqlx, which wants to be told that this is no user's input.
    pub(crate) fn sql(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.0))
    }

    /// The text, for the other clients and for statements made longer by more rows.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}
