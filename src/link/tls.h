/* TLS 1.3 streams between two boxes that know the hash of each other's certificate. Nothing else is checked, and nothing else is needed:
 * no authority, no name, no date. */
#ifndef RH_LINK_TLS_H
#define RH_LINK_TLS_H

#include "link/identity.h"
#include "link/stream.h"

#include <openssl/types.h>

struct tls; /* this box's identity and the peer it expects; used for all connections of a link */

/* identity: a file of rh_identity_make; peer: 64 hexadecimal digits. */
int tls_open(const char *identity, const char *peer, struct tls **out) RH_MUST;
void tls_close(struct tls *tls);
/* This box's own hash. */
const char *tls_hash(const struct tls *tls);

/* Takes over the descriptor, on errors too; `tls` outlives the stream. */
int tls_stream(struct tls *tls, int descriptor, int is_server, struct stream **out) RH_MUST;

int tls_certificate_hash(const X509 *certificate, char hash[RH_IDENTITY_HASH]) RH_MUST;

#endif
