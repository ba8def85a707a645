#include "cuda/choices.h"

#include "core/alloc.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BEST_ALIGNMENT = 256 };

struct choice {
	struct choice_key key;
	char algorithm[CHOICE_BYTES];
};

/* Tags and times lie apart from the choices, so that a look-up reads few cache lines. */
struct set {
	uint64_t tag[CHOICE_WAYS];    /* the key's hash; 0: an empty place */
	int64_t used_at[CHOICE_WAYS]; /* look-up number of the latest use */
	struct choice way[CHOICE_WAYS];
};

struct choices {
	int64_t lookups, misses, evicted;
	struct set set[CHOICE_SETS];
};

/* Where a choice stands. */
struct place {
	struct set *set;
	int way;
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

static uint64_t tag_of(const struct choice_key *key)
{
	uint64_t hash = XXH3_64bits(key, sizeof *key);
	return hash ? hash : 1;
}

/* The two sets that a key may stand in, by the two ends of its hash. */
static void sets_of(struct choices *choices, uint64_t tag, struct set *sets[2])
{
	sets[0] = &choices->set[tag % CHOICE_SETS];
	sets[1] = &choices->set[(tag >> 40) % CHOICE_SETS];
}

static struct place find(struct set *const sets[2], uint64_t tag, const struct choice_key *key)
{
	for (int s = 0; s < 2; s++)
		for (int way = 0; way < CHOICE_WAYS; way++)
			if (sets[s]->tag[way] == tag && !memcmp(&sets[s]->way[way].key, key, sizeof *key))
				return (struct place){sets[s], way};
	return (struct place){NULL, 0};
}

static int empty_places(const struct set *set, int *first)
{
	int count = 0;
	for (int way = CHOICE_WAYS - 1; way >= 0; way--)
		if (!set->tag[way]) {
			*first = way;
			count++;
		}
	return count;
}

/* An empty place in the emptier set, so that both fill evenly and hardly one is full before all are; else the least recently used one. */
static struct place make_room(struct choices *choices, struct set *const sets[2])
{
	int first[2] = {0, 0}, empty[2] = {empty_places(sets[0], &first[0]), empty_places(sets[1], &first[1])};
	int emptier = empty[1] > empty[0];
	if (empty[emptier])
		return (struct place){sets[emptier], first[emptier]};
	struct place oldest = {sets[0], 0};
	for (int s = 0; s < 2; s++)
		for (int way = 0; way < CHOICE_WAYS; way++)
			if (sets[s]->used_at[way] < oldest.set->used_at[oldest.way])
				oldest = (struct place){sets[s], way};
	choices->evicted++;
	return oldest;
}

void *choices_find(struct choices *choices, const struct choice_key *key, int *known)
{
	struct set *sets[2];
	uint64_t tag = tag_of(key);
	sets_of(choices, tag, sets);
	struct place at = find(sets, tag, key);
	*known = at.set != NULL;
	if (!at.set) {
		choices->misses++;
		at = make_room(choices, sets);
		at.set->tag[at.way] = tag;
		at.set->way[at.way].key = *key;
	}
	at.set->used_at[at.way] = ++choices->lookups;
	return at.set->way[at.way].algorithm;
}

void choices_forget(struct choices *choices, const struct choice_key *key)
{
	struct set *sets[2];
	uint64_t tag = tag_of(key);
	sets_of(choices, tag, sets);
	struct place at = find(sets, tag, key);
	if (at.set)
		at.set->tag[at.way] = 0;
}

int64_t choices_misses(const struct choices *choices)
{
	return choices->misses;
}

int64_t choices_evicted(const struct choices *choices)
{
	return choices->evicted;
}
