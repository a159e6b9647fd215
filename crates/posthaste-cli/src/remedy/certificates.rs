//! Certificates of servers that this program does not trust.

use std::error::Error as _;

use posthaste::Error;
use posthaste::store::Dialect;

use crate::target::Target;

/// How to have the server's certificate accepted, if that is why no connection was made.
pub(super) fn advice(error: &Error, target: &Target) -> Option<String> {
    // A certificate that is refused ends the exchange of TLS, which sqlx reports as an error of the connection.
    let cause = match error.source()?.downcast_ref()? {
        cause @ (sqlx::Error::Io(_) | sqlx::Error::Tls(_)) => sqlx::Error::to_string(cause),
        _ => return None,
    };
    let authority = match target.dialect() {
        Dialect::Postgres => "sslrootcert=FILE",
        Dialect::MySql | Dialect::MariaDb => "ssl-ca=FILE",
        Dialect::Sqlite | Dialect::Memory => return None,
    };
    let remedy = if cause.contains("not valid for name") {
        "connect by a name that the certificate has, or give the server a certificate for this one".to_owned()
    } else if cause.contains("peer certificate") {
        format!("name the file with its authority's certificate in the URL: {authority}")
    } else {
        return None;
    };
    Some(format!("{}; {remedy}", error.message()))
}
