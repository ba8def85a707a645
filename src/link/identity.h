/* Who a box is: a private key and a self-signed certificate in one PEM file. Peers know each other by the SHA-256 of the certificate. */
#ifndef RH_LINK_IDENTITY_H
#define RH_LINK_IDENTITY_H

#include "core/error.h"

enum { RH_IDENTITY_HASH = 65 }; /* 64 hexadecimal digits and the end */

/* Makes an Ed25519 key and its certificate in a new file that only its owner may read. -EEXIST: it is there already. */
int rh_identity_make(const char *path) RH_MUST;
/* The hash of the certificate in a file. */
int rh_identity_hash(const char *path, char hash[RH_IDENTITY_HASH]) RH_MUST;

#endif
