/* Pre-tokenizers, as a flat list: each cuts (and may rewrite) what the one before hands on. */
#ifndef RH_TOKEN_PRETOKENIZE_H
#define RH_TOKEN_PRETOKENIZE_H

#include "core/text.h"
#include "token/fragment.h"
#include "token/pattern.h"

enum pre_kind {
	PRE_SPLIT,
	PRE_PREFIX_SPACE, /* the part of ByteLevel that comes before its expression */
	PRE_BYTES,        /* the part that comes after: each byte as a character of its own */
	PRE_DIGITS,
	PRE_PUNCTUATION,
	PRE_METASPACE,
	PRE_BERT, /* bert_cut */
};

/* What becomes of the delimiters that a split finds. */
enum pre_behaviour { PRE_REMOVED, PRE_ISOLATED, PRE_WITH_PREVIOUS, PRE_WITH_NEXT, PRE_CONTIGUOUS };
enum pre_scheme { PRE_NEVER, PRE_FIRST, PRE_ALWAYS };

struct pre_step {
	enum pre_kind kind;
	struct pattern *pattern;      /* SPLIT */
	enum pre_behaviour behaviour; /* SPLIT, DIGITS, PUNCTUATION */
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
	struct rh_text text;
};
void pre_scratch_free(struct pre_scratch *scratch);

/* Runs the steps on `text`, whose last fragments go to `out`; scratch (steps->count). `leading`: of struct fragment. */
int pretokenize(const struct pre_steps *steps, struct pre_scratch *scratch, const char *text, size_t bytes, size_t leading,
                const struct fragment_sink *out) RH_MUST;

/* The byte that a character of GPT-2's alphabet stands for; -1: for none. */
int point_to_byte(uint32_t point);

/* GPT-2's expression, which ByteLevel has built in. */
extern const char pre_gpt2_expression[];

#endif
