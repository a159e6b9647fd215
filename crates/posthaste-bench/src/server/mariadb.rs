//! A private MariaDB with the durability that it comes with.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};

use super::{Process, Site, free_port};

/// Everything else is as the server has it by default: each commit is flushed, pages are written twice.
const SETTINGS: [&str; 6] = [
    "--bind-address=127.0.0.1",
    "--socket=server.sock",
    "--skip-log-bin",
    "--skip-name-resolve",
    "--default-time-zone=+00:00",
    "--character-set-server=utf8mb4",
];

/// A running server.
pub(crate) struct MariaDb {
    process: Process,
    site: Site,
    port: u16,
}

impl MariaDb {
    /// A new one.
    pub(crate) async fn start() -> Result<Self> {
        let site = Site::find("MARIADB")?;
        let data = format!("--datadir={}", site.data().display());
        let user = (site.account.0 == 0).then(|| "--user=root".to_owned());
        let auth = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"];
        let mut make = vec!["--no-defaults".to_owned(), data.clone()];
        make.extend(auth.map(str::to_owned));
        make.extend(user.clone());
        site.make(&make)?;
        let port = free_port()?;
        let mut command = site.command(&site.serve)?;
        command
            .arg("--no-defaults")
            .arg(data)
            .arg(format!("--tmpdir={}", site.home.display()))
            .arg(format!("--port={port}"))
            .args(user)
            .args(SETTINGS);
        let process = Process { child: command.spawn()?, signal: "TERM" };
        let mut server = Self { process, site, port };
        let began = Instant::now();
        while MySqlConnection::connect(&server.url_of("mysql")).await.is_err() {
            if server.process.has_ended() || began.elapsed() > Duration::from_secs(60) {
                bail!("MariaDB does not get ready: {}", server.site.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    fn url_of(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    /// A new database of this name; where it is.
    pub(crate) async fn create(&self, name: &str) -> Result<String> {
        let mut client = MySqlConnection::connect(&self.url_of("mysql")).await?;
        client.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        Ok(self.url_of(name))
    }

    pub(crate) async fn version(&self) -> Result<String> {
        let mut client = MySqlConnection::connect(&self.url_of("mysql")).await?;
        let version: String = sqlx::query_scalar("SELECT version()").fetch_one(&mut client).await?;
        Ok(format!("MariaDB {version}"))
    }
}
