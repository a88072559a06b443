//! Certificates for the nodes of a cluster that has no authority of its own yet.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::peers::name_of;
use crate::raft::NodeId;

/// Whom all nodes of a cluster trust.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key: for its owner alone.
    pub key: String,
}

impl Authority {
    /// A new one, with its own certificate.
    pub fn new() -> Result<(Authority, Issued), rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = params()?.self_signed(&key)?.pem();
        let issued = Issued { certificate: certificate.clone(), key: key.serialize_pem() };
        Ok((Authority { certificate, issuer: Issuer::new(params()?, key) }, issued))
    }

    /// One that was made before: its certificate and its key, in PEM.
    pub fn from_pem(certificate: String, key: &str) -> Result<Authority, rcgen::Error> {
        let issuer = Issuer::new(params()?, KeyPair::from_pem(key)?);
        Ok(Authority { certificate, issuer })
    }

    /// Its certificate, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a node.
    pub fn issue(&self, node: NodeId) -> Result<Issued, rcgen::Error> {
        let mut params = CertificateParams::new(vec![name_of(node)])?;
        params.distinguished_name.push(DnType::CommonName, name_of(node));
        params.use_authority_key_identifier_extension = true;
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        Ok(Issued { certificate: params.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
    }
}

fn params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "quipu cluster");
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}
