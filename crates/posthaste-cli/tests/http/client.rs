//! A client that says byte for byte what it sends, and holds every answer to the OpenAPI document.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::daemon::Daemon;
use crate::support::{Db, Dir, Kind};

/// What whoever writes must show.
pub(crate) const TOKEN: &str = "hunter22-operators";

/// How long an answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The databases that everything is asked on.
pub(super) const DATABASES: [Kind; 2] = [Kind::Sqlite, Kind::Postgres];

/// What the daemon answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    /// The head, in small letters.
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Demands this code.
    #[track_caller]
    pub(super) fn is(&self, code: u16) -> Value {
        assert_eq!(self.code, code, "{self:?}");
        self.json()
    }

    /// Demands an error of this code and kind with these words.
    #[track_caller]
    pub(super) fn fails(&self, code: u16, kind: &str, words: &str) {
        let error = self.is(code)["error"].clone();
        assert_eq!(error["kind"], kind, "{self:?}");
        assert!(error["message"].as_str().unwrap().contains(words), "not {words:?}: {self:?}");
    }
}

/// Asks one daemon.
pub(crate) struct Client {
    pub(super) address: SocketAddr,
    token: Option<&'static str>,
    document: Value,
}

/// A daemon on this database, made by `migrate up`, with a token.
pub(crate) fn start(db: &Db) -> (Daemon, Client) {
    db.run(["migrate", "up"]).exits(0);
    start_by(db.command(["relay"]).env("OUTBOX_HTTP_TOKEN", TOKEN))
}

pub(crate) fn start_by(command: &mut Command) -> (Daemon, Client) {
    let mut daemon = Daemon::start(command);
    let client = Client::of(&mut daemon);
    (daemon, client)
}

/// A daemon in this directory, with a token and this file.
pub(super) fn start_with(dir: &Dir, file: &str) -> (Daemon, Client) {
    dir.write("posthaste.toml", file);
    start_by(dir.command(["relay"]).env("OUTBOX_HTTP_TOKEN", TOKEN))
}

impl Client {
    /// Asks the daemon at the address that it says.
    pub(crate) fn of(daemon: &mut Daemon) -> Self {
        let said = daemon.said("serving http://");
        let (_, rest) = said.split_once("http://").unwrap();
        let (address, _) = rest.split_once(": ").unwrap();
        let address: SocketAddr = address.replace("0.0.0.0", "127.0.0.1").parse().unwrap();
        assert_ne!(address.port(), 0, "{said}");
        let mut client = Self { address, token: Some(TOKEN), document: Value::Null };
        client.document = client.ask("GET", "/api/v1/openapi.json", None).json();
        client
    }

    /// Somebody who has this token, or none.
    pub(super) fn with_token(&self, token: Option<&'static str>) -> Self {
        Self { address: self.address, token, document: self.document.clone() }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        let answer = self.ask("GET", path, None);
        self.compare("get", path, None, &answer);
        answer
    }

    #[track_caller]
    pub(super) fn post(&self, path: &str, body: &Value) -> Answer {
        let answer = self.ask("POST", path, Some(&body.to_string()));
        self.compare("post", path, Some(body), &answer);
        answer
    }

    /// A post without a body.
    #[track_caller]
    pub(super) fn tell(&self, path: &str) -> Answer {
        let answer = self.ask("POST", path, None);
        self.compare("post", path, None, &answer);
        answer
    }

    fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        let mut headers = format!("host: {}\r\n", self.address);
        if let Some(token) = self.token {
            headers += &format!("authorization: Bearer {token}\r\n");
        }
        if let Some(body) = body {
            headers += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n{}",
            body.unwrap_or_default()
        ))
    }

    /// Sends this and takes what comes until the end.
    pub(crate) fn send(&self, request: &str) -> Answer {
        self.send_bytes(request.as_bytes(), PATIENCE)
    }

    /// The same for what need not be text, with somebody who waits so long for the next word.
    pub(super) fn send_bytes(&self, request: &[u8], patience: Duration) -> Answer {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(patience)).unwrap();
        // Who is refused early need not be listened to.
        let _ = stream.write_all(request);
        read(&mut stream)
    }

    /// Every operation of the document: its method in capitals, and its path with these names in it.
    pub(crate) fn operations(&self, table: &str, sink: &str) -> Vec<(String, String)> {
        let paths = self.document["paths"].as_object().unwrap();
        let operations = paths.iter().flat_map(|(path, item)| {
            let path = path.replace("{table}", table).replace("{sink}", sink);
            let path = path.replace("{id}", "01563e3a-b5d3-d676-4c61-efb99302bd5b");
            assert!(!path.contains('{'), "say what stands there: {path}");
            item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
        });
        operations.collect()
    }

    /// The paths that are posted to.
    pub(crate) fn writes(&self, table: &str, sink: &str) -> Vec<String> {
        let reads = |method: &str| matches!(method, "GET" | "HEAD");
        let writes = self.operations(table, sink).into_iter().filter(|(method, _)| !reads(method));
        writes.inspect(|(method, _)| assert_eq!(method, "POST")).map(|(_, path)| path).collect()
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Demands that the document knows this answer, and of what was accepted, the request.
    #[track_caller]
    fn compare(&self, method: &str, path: &str, body: Option<&Value>, answer: &Answer) {
        let path = path.split('?').next().unwrap();
        let paths = self.document["paths"].as_object().unwrap();
        let fits = |template: &str| {
            let (parts, named) = (path.split('/'), template.split('/'));
            parts.clone().count() == named.clone().count()
                && parts.zip(named).all(|(part, name)| part == name || name.starts_with('{'))
        };
        let problem = json!({ "$ref": "#/components/schemas/Problem" });
        let operation = paths.iter().find(|(template, _)| fits(template)).map(|(_, item)| &item[method]);
        let Some(operation) = operation.filter(|operation| operation.is_object()) else {
            assert!(matches!(answer.code, 401 | 403 | 404 | 405), "{method} {path}: {answer:?}");
            return self.check(&problem, &answer.json(), path);
        };
        let mut response = &operation["responses"][answer.code.to_string()];
        assert!(response.is_object(), "{method} {path} is not said to answer {}: {answer:?}", answer.code);
        if let Some(reference) = response["$ref"].as_str() {
            response = self.document.pointer(reference.trim_start_matches('#')).unwrap();
        }
        let (kind, content) = response["content"].as_object().unwrap().iter().next().unwrap();
        assert!(answer.head.contains(&format!("content-type: {kind}")), "{answer:?}");
        if kind == "application/json" {
            self.check(&content["schema"], &answer.json(), path);
        }
        if let (Some(body), true) = (body, answer.code < 300) {
            self.check(&operation["requestBody"]["content"]["application/json"]["schema"], body, path);
        }
    }

    /// Demands that a value fits a schema of the document.
    #[track_caller]
    fn check(&self, schema: &Value, value: &Value, path: &str) {
        let mut whole = Map::new();
        whole.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        whole.extend(schema.as_object().unwrap().clone());
        whole.insert("components".to_owned(), self.document["components"].clone());
        let validator =
            jsonschema::options().should_validate_formats(true).build(&Value::Object(whole)).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{path} is not as documented: {errors:#?} in {value:#}");
    }
}

/// Everything that comes, up to the end.
pub(super) fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A connection that is reset has said what it had to say.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, text) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Answer { code, head: head.to_ascii_lowercase(), text: text.to_owned() }
}
