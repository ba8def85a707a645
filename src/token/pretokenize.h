/* Pre-tokenizers, as a flat list: each cuts (and may rewrite) every piece that is still text. */
#ifndef RH_TOKEN_PRETOKENIZE_H
#define RH_TOKEN_PRETOKENIZE_H

#include "token/pattern.h"
#include "token/pieces.h"

enum pre_kind {
	PRE_SPLIT,
	PRE_PREFIX_SPACE, /* the part of ByteLevel that comes before its expression */
	PRE_BYTES,        /* the part that comes after: each byte as a character of its own */
	PRE_DIGITS,
	PRE_METASPACE,
	PRE_BERT, /* bert_cut */
};

/* What becomes of the delimiters that a split finds. */
enum pre_behaviour { PRE_REMOVED, PRE_ISOLATED, PRE_WITH_PREVIOUS, PRE_WITH_NEXT, PRE_CONTIGUOUS };
enum pre_scheme { PRE_NEVER, PRE_FIRST, PRE_ALWAYS };

struct pre_step {
	enum pre_kind kind;
	struct pattern *pattern;      /* SPLIT */
	enum pre_behaviour behaviour; /* SPLIT, DIGITS */
	int invert;                   /* SPLIT: what the pattern does not match are the delimiters */
	char replacement[5];          /* METASPACE: one character */
	enum pre_scheme scheme;       /* METASPACE */
	int cut;                      /* METASPACE: split before each replacement */
};

struct pre_steps {
	struct pre_step *step;
	size_t count, capacity;
};
void pre_steps_free(struct pre_steps *steps);

struct pre_scratch {
	struct pattern_scratch pattern;
	struct spans spans;
	struct rh_text text;
};
void pre_scratch_free(struct pre_scratch *scratch);

/* Runs the steps on *pieces; *other is room for the results of every second one, and the two may change places. `most`: about so many
 * pieces are wanted, the first of them (0: all); *is_cut: there are more. */
int pretokenize(const struct pre_steps *steps, struct pre_scratch *scratch, size_t most, struct pieces *pieces, struct pieces *other,
                int *is_cut) RH_MUST;

/* The byte that a character of GPT-2's alphabet stands for; -1: for none. */
int point_to_byte(uint32_t point);

/* GPT-2's expression, which ByteLevel has built in. */
extern const char pre_gpt2_expression[];

#endif
