/* The instances of the link seam, opened as two ends of this process. */
#ifndef RH_TESTS_LINK_ENDS_H
#define RH_TESTS_LINK_ENDS_H

#include "check.h"
#include "folder.h"

#include "link/identity.h"
#include "link/pair.h"
#include "link/tcp.h"

#include <stdlib.h>
#include <string.h>

enum { ENDS_MESSAGES = 16 };

struct ends {
	struct rh_link *end[2];
	int port; /* of a listening end */
};

/* The key files of the two ends, and their hashes; made once for a program, in a folder of its own. */
struct ends_keys {
	char path[2][256], hash[2][RH_IDENTITY_HASH];
};
static struct ends_keys ends_keys;
static char ends_folder[] = "/tmp/rh-link-XXXXXX";

static inline int ends_open_keys(void **state)
{
	(void)state;
	if (!mkdtemp(ends_folder))
		return -1;
	for (int i = 0; i < 2; i++) {
		snprintf(ends_keys.path[i], sizeof ends_keys.path[i], "%s/box%d.pem", ends_folder, i);
		check_ok(rh_identity_make(ends_keys.path[i]));
		check_ok(rh_identity_hash(ends_keys.path[i], ends_keys.hash[i]));
	}
	return 0;
}

static inline int ends_remove_keys(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		unlink(ends_keys.path[i]);
	return rmdir(ends_folder);
}

/* keys NULL: plain. `through`: the address that the second end connects to, NULL: the first end's own. */
static inline void ends_tcp_for(const struct ends_keys *keys, const struct rh_tcp_options *common, const char *through, int64_t messages,
                                struct ends *out)
{
	struct rh_tcp_options options = *common;
	char address[64] = "127.0.0.1:0";
	options.address = address;
	options.listens = 1;
	options.messages = messages;
	options.greeting = options.greeting ? options.greeting : "build=1\nmodel=tiny\n";
	if (keys) {
		options.identity = keys->path[0];
		options.peer = keys->hash[1];
	}
	check_ok(rh_tcp_open(&options, &out->end[0]));
	out->port = rh_tcp_port(out->end[0]);
	snprintf(address, sizeof address, "127.0.0.1:%d", out->port);
	if (through)
		options.address = through;
	options.listens = 0;
	if (keys) {
		options.identity = keys->path[1];
		options.peer = keys->hash[0];
	}
	check_ok(rh_tcp_open(&options, &out->end[1]));
}

static inline void ends_tcp(const struct ends_keys *keys, const struct rh_tcp_options *common, const char *through, struct ends *out)
{
	ends_tcp_for(keys, common, through, ENDS_MESSAGES, out);
}

/* A byte from the second end to the first, which so receives its message of that number, from 1. */
static inline void ends_exchange_one(struct ends *ends, int64_t number)
{
	char byte = 0;
	check_ok(ends->end[0]->ops->receive(ends->end[0], 9, &byte, 1));
	check_ok(ends->end[1]->ops->send(ends->end[1], 9, "y", 1));
	check_ok(ends->end[0]->ops->wait(ends->end[0], 0, number));
	assert_int_equal(byte, 'y');
}

static inline void ends_close(struct ends *ends)
{
	rh_link_close(ends->end[0]);
	rh_link_close(ends->end[1]);
}

#endif
