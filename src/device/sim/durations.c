/* A cache of the durations of ops. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

#include <string.h>

enum { PLACES = 2048, WORDS = 1 + 2 * RH_OP_OPERANDS + 6 };

/* Everything that an op's duration depends on: kind, lengths and dtypes of operands, and the parameters that its cost reads. */
struct key {
	int words;
	int64_t word[WORDS];
};

struct sim_durations {
	struct {
		struct key key; /* 0 words: empty */
		double seconds;
	} entry[PLACES]; /* direct-mapped, by a hash of the key */
};

int sim_durations_create(struct sim_durations **out)
{
	*out = rh_alloc(1, sizeof **out);
	return *out ? 0 : -ENOMEM;
}

void sim_durations_free(struct sim_durations *durations)
{
	rh_free(durations);
}

static void add(struct key *key, int64_t word)
{
	key->word[key->words++] = word;
}

static void make_key(const struct rh_op *op, struct key *key)
{
	const struct rh_op_info *info = rh_op_info(op->kind);
	key->words = 0;
	add(key, op->kind);
	for (int i = 0; i < info->operands; i++) {
		const struct rh_view *view = &op->operand[i];
		add(key, view->data ? view->cols << 8 | view->dtype : -1);
		add(key, view->data ? view->rows : -1);
	}
	switch (op->kind) {
	case RH_OP_ATTENTION:
	case RH_OP_ATTENTION_BACKWARD:
		add(key, op->attention.heads);
		add(key, op->attention.kv_heads);
		add(key, op->attention.documents);
		add(key, op->attention.longest);
		add(key, op->attention.window);
		add(key, op->attention.direction);
		break;
	case RH_OP_GEMM:
		add(key, op->gemm.trans_a * 2 + op->gemm.trans_b); /* square operands have equal shapes either way */
		break;
	case RH_OP_SCALED_GEMM:
		add(key, op->scaled_gemm.trans_a * 2 + op->scaled_gemm.trans_b);
		add(key, op->scaled_gemm.chunk);
		break;
	default:
		break;
	}
}

static uint32_t hash_of(const struct key *key)
{
	uint64_t hash = 0;
	for (int i = 0; i < key->words; i++)
		hash = (hash ^ (uint64_t)key->word[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
	return (uint32_t)(hash >> 40) % PLACES;
}

double sim_op_seconds(struct rh_sim *sim, const struct rh_op *op)
{
	struct key key;
	make_key(op, &key);
	uint32_t at = hash_of(&key);
	struct key *known = &sim->durations->entry[at].key;
	if (known->words != key.words || memcmp(known->word, key.word, (size_t)key.words * sizeof *key.word)) {
		*known = key;
		sim->durations->entry[at].seconds = rh_sim_op_seconds(&sim->profile, op, sim->share);
	}
	return sim->durations->entry[at].seconds;
}
