#include "link/identity.h"

#include "link/tls.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

/* A certificate needs dates; nobody looks at them, as the peer compares the hash alone. */
static X509 *make_certificate(EVP_PKEY *key)
{
	X509 *certificate = X509_new();
	unsigned char serial[8];
	if (!certificate || RAND_bytes(serial, sizeof serial) != 1)
		goto fail;
	serial[0] &= 0x7f; /* positive */
	BIGNUM *number = BN_bin2bn(serial, sizeof serial, NULL);
	int is_set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));
	BN_free(number);
	if (!is_set || !X509_set_version(certificate, 2) ||
	    !ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate), "20200101000000Z") ||
	    !ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate), "99991231235959Z") || !X509_set_pubkey(certificate, key))
		goto fail;
	X509_NAME *name = X509_get_subject_name(certificate);
	if (!X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"roundhouse box", -1, -1, 0) ||
	    !X509_set_issuer_name(certificate, name) || !X509_sign(certificate, key, NULL))
		goto fail;
	return certificate;
fail:
	X509_free(certificate);
	return NULL;
}

static int write_pair(const char *path, EVP_PKEY *key, X509 *certificate)
{
	int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (descriptor < 0)
		return rh_fail(-errno, "%s: cannot make a key there: %s", path, errno == EEXIST ? "the file exists" : strerror(errno));
	FILE *file = fdopen(descriptor, "w");
	if (!file) {
		close(descriptor);
		return rh_fail(-ENOMEM, "%s: out of memory", path);
	}
	int is_written = PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) && PEM_write_X509(file, certificate) && !fflush(file) &&
	                 !fsync(descriptor);
	if (fclose(file) || !is_written) {
		int code = errno ? -errno : -EIO;
		unlink(path);
		return rh_fail(code, "%s: writing the key failed: %s", path, strerror(-code));
	}
	return 0;
}

int rh_identity_make(const char *path)
{
	EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	X509 *certificate = key ? make_certificate(key) : NULL;
	int rc = certificate ? write_pair(path, key, certificate) : rh_fail(-ENOMEM, "%s: libssl could not make a key", path);
	X509_free(certificate);
	EVP_PKEY_free(key);
	return rc;
}

int rh_identity_hash(const char *path, char hash[RH_IDENTITY_HASH])
{
	FILE *file = fopen(path, "re");
	if (!file)
		return rh_fail(-errno, "%s: %s; `roundhouse keys` makes a key", path, strerror(errno));
	X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
	fclose(file);
	int rc = certificate ? tls_certificate_hash(certificate, hash)
	                     : rh_fail(-EINVAL, "%s: holds no certificate; `roundhouse keys` makes a key with one", path);
	X509_free(certificate);
	return rc;
}
