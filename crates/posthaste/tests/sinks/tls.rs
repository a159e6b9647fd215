//! TLS: whom a sink trusts, with the one provider of cryptography that everything here has.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste::sink::nats::NatsStream;
use posthaste::sink::{HttpSink, NatsSink, Outcome, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::destination::*;
use super::nats::server::Server;

/// A certificate for this machine that nobody has signed, and its key.
fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// A server that says 204 to whatever it reads; its port.
async fn secure_receiver(certified: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut read = Vec::new();
                let mut part = [0; 4096];
                while !String::from_utf8_lossy(&read).contains("9.900 }") {
                    match stream.read(&mut part).await {
                        Ok(count @ 1..) => read.extend_from_slice(&part[..count]),
                        _ => return,
                    }
                }
                stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.ok();
                stream.shutdown().await.ok();
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn si4_a_webhook_trusts_whom_it_is_told_to() {
    let certified = certificate();
    let url = format!("https://localhost:{}/hook", secure_receiver(&certified).await);
    let trusting = HttpSink::builder(&url).root_certificates(certified.cert.pem()).build().unwrap();
    assert_eq!(trusting.publish(&deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);

    let strict = HttpSink::builder(&url).build().unwrap();
    let outcomes = strict.publish(&deliveries(1)).await;
    let [Outcome::Unavailable { error }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn si2_nats_trusts_whom_it_is_told_to() {
    let certified = certificate();
    let (pem, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
    let files = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("cert.pem"), &pem).unwrap();
    let server = Server::secured(&pem, &key).await;

    let builder = || {
        NatsSink::builder(server.url().replace("nats://127.0.0.1", "tls://localhost"))
            .create_stream(NatsStream::new("EVENTS").subject("events.>"))
            .connect_timeout(Duration::from_secs(3))
    };
    let trusting = builder().root_certificates(files.join("cert.pem")).build().await.unwrap();
    assert_eq!(trusting.publish(&deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);

    let strict = builder().build().await.unwrap();
    let outcomes = strict.publish(&deliveries(1)).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    std::fs::remove_dir_all(&files).ok();
}
