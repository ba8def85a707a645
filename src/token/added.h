/* Added tokens: texts that become one token wherever they stand, before the model sees the rest. Those marked `normalized` are looked for
 * in normalized text, the others before that. */
#ifndef RH_TOKEN_ADDED_H
#define RH_TOKEN_ADDED_H

#include "token/fragment.h"
#include "token/normalize.h"
#include "token/vocab.h"

enum added_flags { ADDED_SINGLE_WORD = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4, ADDED_NORMALIZED = 8, ADDED_SPECIAL = 16 };

struct added_token {
	size_t offset, bytes;         /* into added.text */
	size_t shown_at, shown_bytes; /* what it decodes to */
	unsigned flags;
	int shows_normalized; /* it decodes to its text as normalizing leaves it: it is `normalized`, or was when it was added before */
	int32_t id;
	const char *file; /* static: which file beside tokenizer.json names it; NULL: that one itself */
};

/* A trie of texts; its edges are in one hash table. */
struct added_trie {
	uint64_t *edge;  /* (node << 8 | byte) + 1, 0 empty */
	uint32_t *child; /* the node it leads to; 0 is the root */
	size_t slots, nodes;
	int32_t *token; /* of a node, as an index into added.token; -1 none */
	size_t tokens;  /* capacity */
	unsigned char starts[256];
};

struct added {
	struct rh_text text;
	struct added_token *token; /* in the order of the file */
	size_t count, capacity;
	uint32_t *by_id; /* index + 1 of the last token of this id */
	size_t ids, ids_capacity;
	struct vocab contents; /* text to id */
	struct added_trie plain, normalized;
	int64_t highest; /* id so far, -1 none */
	int64_t limit;   /* tokens with this id or a higher one are looked for nowhere; 0: none */
};
void added_free(struct added *added);

/* Adds a token with the id it has in the vocabulary, or else the next free one, whatever the file says (as the library does). */
int added_add(struct added *added, const struct vocab *vocab, const char *text, size_t bytes, unsigned flags, const char *where) RH_MUST;
/* After the last one: makes the tries, anew where they are there already. */
int added_finish(struct added *added, const struct normalizers *normalizers, const char *where) RH_MUST;

const struct added_token *added_by_id(const struct added *added, int32_t id); /* NULL: none */
/* Whether decoding may skip it: whether what it decodes to is the text of a special token. */
int added_is_special(const struct added *added, const struct added_token *token);

/* Cuts `text` at the tokens of one trie. `leading`: of struct fragment. */
enum added_pass { ADDED_PLAIN, ADDED_AFTER_NORMALIZING };
int added_split(const struct added *added, enum added_pass pass, const char *text, size_t bytes, size_t leading,
                const struct fragment_sink *out) RH_MUST;

#endif
