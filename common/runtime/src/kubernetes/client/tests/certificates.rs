use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::{fs, io};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::files::FILES_CHECK;
use super::*;
use crate::kubernetes::scripted::options;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Answers each request with the certificate of who asks; takes none that another authority signed.
    fn serve(&self) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let (certificate, key) = self.sign("server");
        let config = ServerConfig::builder()
            .with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build().unwrap())
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), tcp.unwrap());
                std::thread::spawn(move || answer(tls));
            }
        });
        url
    }
}

/// Ends with an error where the client is not trusted, or does not trust.
fn answer(mut tls: StreamOwned<ServerConnection, TcpStream>) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = tls.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..read]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            let who = tls.conn.peer_certificates().map_or(&[][..], |chain| &chain[0]);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", who.len());
            let answer = [head.as_bytes(), who].concat();
            tls.write_all(&answer)?;
        }
    }
}

fn kubeconfig(dir: &TempDir, authority: &Authority, server: &str) -> ClientOptions {
    let path = dir.path().join("kubeconfig");
    fs::write(dir.path().join("ca.crt"), authority.certificate.pem()).unwrap();
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}],
          clusters: [{{name: k, cluster: {{server: '{server}', certificate-authority: ca.crt}}}}],
          users: [{{name: u, user: {{client-certificate: u.crt, client-key: u.key}}}}]}}"
    );
    fs::write(&path, text).unwrap();
    ClientOptions { kubeconfig: Some(path), ..options(&[]) }
}

fn write(dir: &Path, (certificate, key): &(rcgen::Certificate, KeyPair)) {
    fs::write(dir.join("u.crt"), certificate.pem()).unwrap();
    fs::write(dir.join("u.key"), key.serialize_pem()).unwrap();
}

/// Passes the time after which files are looked at.
async fn pass() {
    tokio::time::pause();
    tokio::time::advance(FILES_CHECK).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_client_certificate_that_changed_is_shown_on_new_connections() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (first, second) = (authority.sign("first"), authority.sign("second"));
    write(dir.path(), &first);
    let client = Client::new(kubeconfig(&dir, &authority, &authority.serve())).await.unwrap();
    assert_eq!(client.get("/x").await.unwrap(), first.0.der().as_ref());
    // Two files never change in one moment: a certificate without its key is not used.
    fs::write(dir.path().join("u.crt"), second.0.pem()).unwrap();
    pass().await;
    assert_eq!(client.get("/x").await.unwrap(), first.0.der().as_ref());
    assert!(client.status().reload_error.unwrap().contains("kubeconfig"));
    write(dir.path(), &second);
    pass().await;
    assert_eq!(client.get("/x").await.unwrap(), second.0.der().as_ref());
    assert_eq!(client.status().reload_error, None);
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_talked_to() {
    let (dir, authority, other) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    write(dir.path(), &authority.sign("u"));
    let client = Client::new(kubeconfig(&dir, &authority, &other.serve())).await.unwrap();
    let error = client.get("/x").await.unwrap_err().to_string();
    assert!(error.starts_with("https://127.0.0.1:") && error.contains("certificate"), "{error}");
}
