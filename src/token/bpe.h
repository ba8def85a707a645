/* Byte-pair encoding of one piece of text: characters (or, failing that, bytes or the unknown token) merged pair by pair, lowest rank
 * first and leftmost among equals. Time is n log n in the piece's length. */
#ifndef RH_TOKEN_BPE_H
#define RH_TOKEN_BPE_H

#include "token/tokenizer.h"
#include "token/vocab.h"

#define BPE_NO_PAIR UINT64_MAX

enum {
	BPE_NEAR = 0x800,        /* code points of one or two bytes have their ids in a table */
	BPE_STRETCH = 32 << 10,  /* longer texts are cut where no merge reaches across, since each byte takes 32 of scratch */
	BPE_CROSSINGS_LOG2 = 20, /* bits that say where one may */
};

struct bpe_merge {
	uint64_t pair;         /* left << 32 | right; BPE_NO_PAIR where empty */
	uint32_t rank, merged; /* the lower rank goes first */
};

struct bpe {
	struct vocab vocab;
	struct bpe_merge *merge; /* hash table */
	size_t slots, merges;
	char *unknown; /* NULL: characters that are not in the vocabulary vanish */
	int fuse_unknown, byte_fallback, ignore_merges;
	int32_t unknown_id;     /* -1 while there is none */
	int32_t near[BPE_NEAR]; /* -1: none */
	int32_t byte[256];      /* <0xNN>, -1: none */
	struct rh_text joined;  /* while loading */
};
void bpe_free(struct bpe *bpe);

/* The two texts and their concatenation must be in the vocabulary. A pair that is there already gets the new rank. */
int bpe_add_merge(struct bpe *bpe, const char *left, size_t left_bytes, const char *right, size_t right_bytes, uint32_t rank,
                  const char *where) RH_MUST;
int bpe_put_merge(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t merged) RH_MUST;
/* After the vocabulary is complete and the flags are set. */
void bpe_finish(struct bpe *bpe);

struct bpe_symbol {
	int32_t id;
	uint32_t previous, next; /* neighbours; BPE_NONE at the ends; `is_merged` once merged into the one before */
	int is_merged;
};
struct bpe_event {
	uint64_t key; /* rank << 32 | position */
	uint32_t merged;
};
struct bpe_scratch {
	struct bpe_symbol *symbol;
	struct bpe_event *heap;
	size_t symbols, symbol_capacity, events, heap_capacity;
	unsigned char *crossed; /* (2^BPE_CROSSINGS_LOG2 bits), made at the first long text */
};
void bpe_scratch_free(struct bpe_scratch *scratch);

int bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *text, size_t bytes, struct rh_ids *out) RH_MUST;
int ids_add(struct rh_ids *ids, int32_t id) RH_MUST;

#endif
