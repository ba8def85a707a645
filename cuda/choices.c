#include "cuda/choices.h"

#include "core/alloc.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BEST_ALIGNMENT = 256 };

struct choice {
	struct choice_key key;
	char algorithm[CHOICE_BYTES];
	int known;
};

struct set {
	struct choice way[CHOICE_WAYS];
	int oldest;
};

struct choices {
	int64_t searched;
	struct set set[CHOICE_SETS];
};

static int32_t alignment_of(const void *data)
{
	uintptr_t low = (uintptr_t)data & -(uintptr_t)data;
	return !low || low > BEST_ALIGNMENT ? BEST_ALIGNMENT : (int32_t)low;
}

struct choice_key choice_key_of(const struct blas_product *p)
{
	struct choice_key key;
	memset(&key, 0, sizeof key);
	const void *c = p->c.data ? p->c.data : p->d;
	key.m = p->m, key.n = p->n, key.k = p->k;
	key.lda = p->a.ld, key.ldb = p->b.ld, key.ldc = p->c.data ? p->c.ld : p->ldd, key.ldd = p->ldd;
	key.trans_a = p->trans_a, key.trans_b = p->trans_b, key.output = (int32_t)p->output;
	key.type_a = (int32_t)p->type_a, key.type_b = (int32_t)p->type_b;
	key.adds = p->c.data != NULL, key.in_place = c == p->d, key.has_bias = p->bias != NULL;
	key.alignment[0] = alignment_of(p->a.data), key.alignment[1] = alignment_of(p->b.data);
	key.alignment[2] = alignment_of(c), key.alignment[3] = alignment_of(p->d), key.alignment[4] = alignment_of(p->bias);
	return key;
}

struct choices *choices_create(void)
{
	return rh_alloc(1, sizeof(struct choices));
}

void choices_destroy(struct choices *choices)
{
	rh_free(choices);
}

static struct set *set_of(struct choices *choices, const struct choice_key *key)
{
	return &choices->set[XXH3_64bits(key, sizeof *key) % CHOICE_SETS];
}

static struct choice *known_one(struct set *set, const struct choice_key *key)
{
	for (int way = 0; way < CHOICE_WAYS; way++)
		if (set->way[way].known && !memcmp(&set->way[way].key, key, sizeof *key))
			return &set->way[way];
	return NULL;
}

void *choices_find(struct choices *choices, const struct choice_key *key, int *known)
{
	struct set *set = set_of(choices, key);
	struct choice *choice = known_one(set, key);
	*known = choice != NULL;
	if (choice)
		return choice->algorithm;
	choices->searched++;
	choice = &set->way[set->oldest];
	set->oldest = (set->oldest + 1) % CHOICE_WAYS;
	choice->key = *key;
	choice->known = 1;
	return choice->algorithm;
}

void choices_forget(struct choices *choices, const struct choice_key *key)
{
	struct choice *choice = known_one(set_of(choices, key), key);
	if (choice)
		choice->known = 0;
}

int64_t choices_searched(const struct choices *choices)
{
	return choices->searched;
}
