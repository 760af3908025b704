//! Who is who in a control plane: a certificate authority, the server's certificate, users and their tokens.
//!
//! Users have bearer tokens, not certificates, so that a proxy that ends TLS can pass on who asks.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::json;

pub const SERVER_CERTIFICATE: &str = "server.crt";
pub const SERVER_KEY: &str = "server.key";
pub const SERVICE_ACCOUNT_KEY: &str = "service-account.key";
pub const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-account.pub";
pub const TOKENS: &str = "tokens.csv";
const CA: &str = "ca.crt";

/// Where a control plane that machines ask listens, besides on loopback: an address of the tests' own network.
pub const FOR_MACHINES: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
/// `kubernetes.default`: the first of the range of services.
const KUBERNETES: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Its service account in the chart, whose roles it has.
pub const AGENT: &str = "system:serviceaccount:kube-system:portway-agent";
/// Its service account in the chart, whose roles it has.
pub const OPERATOR: &str = "system:serviceaccount:kube-system:portway-operator";
/// Only this test's API server takes them.
pub const AGENT_TOKEN: &str = "token-of-the-agent";
pub const OPERATOR_TOKEN: &str = "token-of-the-operator";
pub const ADMIN_TOKEN: &str = "token-of-the-admin";
/// Machines with a kubelet that the API server knows.
pub const MACHINES: [&str; 2] = ["node-1", "node-2"];

/// Certificates, keys and tokens as files of a directory.
#[derive(Debug)]
pub struct Identity {
    dir: PathBuf,
    ca: Vec<u8>,
    server: (Vec<u8>, Vec<u8>),
}

impl Identity {
    /// A certificate authority, a certificate for servers on the loopback address and [`FOR_MACHINES`], and the users
    /// `admin`, [`AGENT`], [`OPERATOR`] and [`MACHINES`].
    pub fn new(dir: &Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_key = KeyPair::generate().context("make a key")?;
        let ca = params.self_signed(&ca_key).context("sign the authority's certificate")?;
        let issuer = Issuer::new(params, ca_key);

        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        for addr in [Ipv4Addr::LOCALHOST, FOR_MACHINES, KUBERNETES] {
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(addr)));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate().context("make a key")?;
        let server = params.signed_by(&server_key, &issuer).context("sign the server's certificate")?;

        let service_accounts = KeyPair::generate().context("make a key")?;
        let mut tokens = format!("{ADMIN_TOKEN},admin,admin,system:masters\n");
        for (token, user) in [(AGENT_TOKEN, AGENT), (OPERATOR_TOKEN, OPERATOR)] {
            tokens.push_str(&format!("{token},{user},{user},\n"));
        }
        for machine in MACHINES {
            let user = format!("system:node:{machine}");
            tokens.push_str(&format!("{},{user},{user},system:nodes\n", token_of(machine)));
        }
        let identity = Self {
            dir: dir.to_owned(),
            ca: ca.der().to_vec(),
            server: (server.der().to_vec(), server_key.serialize_der()),
        };
        for (name, text) in [
            (CA, ca.pem()),
            (SERVER_CERTIFICATE, server.pem()),
            (SERVER_KEY, server_key.serialize_pem()),
            (SERVICE_ACCOUNT_KEY, service_accounts.serialize_pem()),
            (SERVICE_ACCOUNT_PUBLIC_KEY, service_accounts.public_key_pem()),
            (TOKENS, tokens),
            (&token_file("agent"), AGENT_TOKEN.to_owned()),
            (&token_file("operator"), OPERATOR_TOKEN.to_owned()),
            (&token_file("admin"), ADMIN_TOKEN.to_owned()),
        ] {
            identity.write(name, &text)?;
        }
        for machine in MACHINES {
            identity.write(&token_file(machine), &token_of(machine))?;
        }
        Ok(identity)
    }

    /// The authority's certificate, DER.
    pub fn ca(&self) -> &[u8] {
        &self.ca
    }

    pub fn ca_file(&self) -> PathBuf {
        self.dir.join(CA)
    }

    pub fn service_account_key(&self) -> PathBuf {
        self.dir.join(SERVICE_ACCOUNT_KEY)
    }

    /// Certificate and key (PKCS #8), DER, of a server on the loopback address.
    pub fn server(&self) -> (&[u8], &[u8]) {
        (&self.server.0, &self.server.1)
    }

    /// The file that the kubeconfigs of `user` (`agent`, `operator`, `admin` or a machine) name: what stands in it
    /// counts, not what stood.
    pub fn token_file(&self, user: &str) -> PathBuf {
        self.dir.join(token_file(user))
    }

    /// A kubeconfig of `user` (`agent`, `operator`, `admin` or a machine) for the API server or proxy at `server`.
    pub fn kubeconfig(&self, user: &str, server: &str) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": self.ca_file()}}],
            "users": [{"name": user, "user": {"tokenFile": self.token_file(user)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        });
        let port = server.rsplit(':').next().unwrap_or_default();
        self.write(&format!("{user}-{port}.kubeconfig"), &config.to_string())
    }

    /// All at once: who reads the file of this name meanwhile has the old text or the new.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (path, unfinished) = (self.dir.join(name), self.dir.join(format!("{name}.unfinished")));
        std::fs::write(&unfinished, text)
            .and_then(|()| std::fs::rename(&unfinished, &path))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

fn token_file(user: &str) -> String {
    format!("{user}.token")
}

fn token_of(machine: &str) -> String {
    format!("token-of-{machine}")
}
