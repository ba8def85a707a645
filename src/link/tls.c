#include "link/tls.h"

#include "core/alloc.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

struct tls {
	SSL_CTX *context;
	char peer_hash[RH_IDENTITY_HASH], own_hash[RH_IDENTITY_HASH];
};

struct tls_stream {
	struct stream base;
	struct tls *tls;
	SSL *ssl;
	char shown_hash[RH_IDENTITY_HASH]; /* of the certificate that the peer showed; empty: none yet */
};

int tls_certificate_hash(const X509 *certificate, char hash[RH_IDENTITY_HASH])
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned length = 0;
	if (!X509_digest(certificate, EVP_sha256(), digest, &length) || length != 32)
		return rh_fail(-ENOMEM, "libcrypto could not hash a certificate");
	for (unsigned i = 0; i < 32; i++)
		snprintf(hash + 2 * i, 3, "%02x", digest[i]);
	return 0;
}

/* In place of a chain of authorities: the certificate itself is the one that was named. TLS then proves that the peer has its key. */
static int verify(X509_STORE_CTX *store, void *context)
{
	const struct tls *tls = context;
	SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
	struct tls_stream *stream = SSL_get_app_data(ssl);
	X509 *certificate = X509_STORE_CTX_get0_cert(store);
	if (!certificate || tls_certificate_hash(certificate, stream->shown_hash) || strcasecmp(stream->shown_hash, tls->peer_hash)) {
		X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
		return 0;
	}
	X509_STORE_CTX_set_error(store, X509_V_OK);
	return 1;
}

static int check_hash(const char *peer)
{
	if (strlen(peer) == 64 && strspn(peer, "0123456789abcdefABCDEF") == 64)
		return 0;
	return rh_fail(-EINVAL,
	               "link_peer: '%.80s' is no hash of a certificate: it takes the 64 digits that `roundhouse keys` prints at the peer",
	               peer);
}

static int configure(struct tls *tls, const char *identity)
{
	SSL_CTX *context = tls->context;
	if (!SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) || !SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) ||
	    !SSL_CTX_set_num_tickets(context, 0))
		return rh_fail(-EINVAL, "libssl has no TLS 1.3");
	if (SSL_CTX_use_certificate_file(context, identity, SSL_FILETYPE_PEM) != 1 ||
	    SSL_CTX_use_PrivateKey_file(context, identity, SSL_FILETYPE_PEM) != 1 || !SSL_CTX_check_private_key(context))
		return rh_fail(-EINVAL, "%s: holds no key with its certificate; `roundhouse keys` makes one", identity);
	SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	SSL_CTX_set_cert_verify_callback(context, verify, tls);
	return 0;
}

int tls_open(const char *identity, const char *peer, struct tls **out)
{
	*out = NULL;
	int rc = check_hash(peer);
	if (rc)
		return rc;
	struct tls *tls = rh_alloc(1, sizeof *tls);
	if (!tls)
		return -ENOMEM;
	memcpy(tls->peer_hash, peer, sizeof tls->peer_hash);
	rc = rh_identity_hash(identity, tls->own_hash);
	if (!rc && !(tls->context = SSL_CTX_new(TLS_method())))
		rc = rh_fail(-ENOMEM, "libssl is out of memory");
	if (!rc)
		rc = configure(tls, identity);
	ERR_clear_error();
	if (rc)
		tls_close(tls);
	else
		*out = tls;
	return rc;
}

void tls_close(struct tls *tls)
{
	if (!tls)
		return;
	SSL_CTX_free(tls->context);
	rh_free(tls);
}

const char *tls_hash(const struct tls *tls)
{
	return tls->own_hash;
}

static void stream_destroy(struct stream *base)
{
	struct tls_stream *stream = (struct tls_stream *)base;
	SSL_free(stream->ssl);
	close(base->descriptor);
	rh_free(stream);
}

/* Why a call of libssl did not do its work. An alert is what the peer says of us: only that about our certificate is a refusal; one about
 * a record says that it was damaged on its way. */
static int fault(struct tls_stream *stream, int returned, short *wants)
{
	int kind = SSL_get_error(stream->ssl, returned), system_code = errno;
	unsigned long code = ERR_peek_error();
	char reason[160] = "the peer broke off";
	if (code)
		ERR_error_string_n(code, reason, sizeof reason);
	ERR_clear_error();
	if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
		*wants = kind == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
		return -EAGAIN;
	}
	if (*stream->shown_hash && strcasecmp(stream->shown_hash, stream->tls->peer_hash))
		return rh_fail(-EACCES, "the peer's certificate has the hash %s, not the one that link_peer names (%s)", stream->shown_hash,
		               stream->tls->peer_hash);
	if (kind == SSL_ERROR_SSL && ERR_GET_REASON(code) == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE)
		return rh_fail(-EACCES, "the peer refuses this box: its link_peer must be %s", stream->tls->own_hash);
	if (kind == SSL_ERROR_SYSCALL && system_code && !code)
		snprintf(reason, sizeof reason, "%s", strerror(system_code));
	return rh_fail(-ECONNRESET, "the connection broke: %s", reason);
}

static int tls_greet(struct stream *base, short *wants)
{
	struct tls_stream *stream = (struct tls_stream *)base;
	ERR_clear_error();
	int returned = SSL_do_handshake(stream->ssl);
	return returned == 1 ? 0 : fault(stream, returned, wants);
}

static int64_t tls_read(struct stream *base, void *bytes, int64_t size, short *wants)
{
	struct tls_stream *stream = (struct tls_stream *)base;
	size_t moved = 0;
	ERR_clear_error();
	int returned = SSL_read_ex(stream->ssl, bytes, (size_t)size, &moved);
	if (returned)
		return (int64_t)moved;
	return SSL_get_error(stream->ssl, returned) == SSL_ERROR_ZERO_RETURN ? 0 : fault(stream, returned, wants);
}

static int64_t tls_write(struct stream *base, const void *bytes, int64_t size, short *wants)
{
	struct tls_stream *stream = (struct tls_stream *)base;
	size_t moved = 0;
	ERR_clear_error();
	int returned = SSL_write_ex(stream->ssl, bytes, (size_t)size, &moved);
	return returned ? (int64_t)moved : fault(stream, returned, wants);
}

static void tls_finish(struct stream *base)
{
	SSL_shutdown(((struct tls_stream *)base)->ssl);
	ERR_clear_error();
}

static const struct stream_ops tls_ops = {
        .close = stream_destroy, .greet = tls_greet, .read = tls_read, .write = tls_write, .finish = tls_finish};

int tls_stream(struct tls *tls, int descriptor, int is_server, struct stream **out)
{
	struct tls_stream *stream = rh_alloc(1, sizeof *stream);
	*out = NULL;
	if (!stream) {
		close(descriptor);
		return -ENOMEM;
	}
	stream->base = (struct stream){.ops = &tls_ops, .descriptor = descriptor};
	stream->tls = tls;
	stream->ssl = SSL_new(tls->context);
	if (!stream->ssl || !SSL_set_fd(stream->ssl, descriptor)) {
		stream_destroy(&stream->base);
		return rh_fail(-ENOMEM, "libssl is out of memory");
	}
	SSL_set_app_data(stream->ssl, stream);
	if (is_server)
		SSL_set_accept_state(stream->ssl);
	else
		SSL_set_connect_state(stream->ssl);
	*out = &stream->base;
	return 0;
}
