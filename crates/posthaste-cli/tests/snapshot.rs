//! Answers as people see them, without what differs each time: ids, times, lengths of time and tables' names.

use insta::Settings;

use crate::support::Db;

/// Compares with the snapshot of this name: the same whatever the database.
pub(crate) fn looks(db: &Db, name: &str, text: &str) {
    let mut settings = Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (pattern, instead) in [
        (
            r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
            "00000000-0000-7000-8000-000000000000",
        ),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "[time]"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[time]"),
        (r"-?\b\d+(ms|s|m)( ago)? *", "[length]  "),
        (r"\b0\.[01]\b", "[rate]"),
        // Behind what is as long as it happens to be.
        (r"(TABLE|DIED|AGE|OLDEST|SKEW) +", "$1  "),
        (r"(?m) +$", ""),
    ] {
        settings.add_filter(pattern, instead);
    }
    let text = text.replace(&db.table(), "outbox");
    settings.bind(|| insta::assert_snapshot!(name, text));
}
