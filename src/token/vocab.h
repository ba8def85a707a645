/* Token texts and their ids, both ways. */
#ifndef RH_TOKEN_VOCAB_H
#define RH_TOKEN_VOCAB_H

#include "core/text.h"

#include <stdint.h>

enum { VOCAB_IDS = 1 << 24 }; /* ids are below this: what a file may make us reserve is bounded */

struct vocab_entry {
	size_t offset; /* into text */
	uint32_t bytes;
	int32_t id;
};

struct vocab {
	struct rh_text text; /* NUL-terminated, one after another */
	struct vocab_entry *entry;
	size_t entries, capacity;
	uint32_t *slot; /* hash table of entry + 1, 0 empty */
	size_t slots;
	uint32_t *by_id; /* entry + 1, 0 none */
	size_t ids, ids_capacity;
	size_t distinct; /* texts */
};
void vocab_free(struct vocab *vocab);

/* Room for an id in a table of them (0 where nothing is), and a text kept with its NUL behind those before it: for vocab.c and added.c. */
int by_id_reserve(uint32_t **by_id, size_t *capacity, int64_t id) RH_MUST;
int text_keep(struct rh_text *texts, const char *text, size_t bytes, size_t *at) RH_MUST;

/* A text that is there already gets the new id. `where` names the file in messages. */
int vocab_add(struct vocab *vocab, const char *text, size_t bytes, int64_t id, const char *where) RH_MUST;
int32_t vocab_find(const struct vocab *vocab, const char *text, size_t bytes); /* -1: none */
const char *vocab_text(const struct vocab *vocab, int32_t id, size_t *bytes);  /* NULL: none */

#endif
