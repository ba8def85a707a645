#include "partition/anneal.h"

#include "core/alloc.h"
#include "core/philox.h"
#include "partition/roundpipe_internal.h"

#include <math.h>
#include <string.h>

/* Worse by so much of the whole is taken once in e tries at first, and at the end. */
static const double HOT = 0.004, COLD = 2e-5;

/* A partition as bits: is there a cut at a boundary, 0 to layers? Any bits below `top` are one. */
struct cuts {
	char *forward, *backward;
	int top; /* the fused stage's lower end */
};

struct walk {
	const struct anneal *how;
	struct cuts now, next;
	struct rh_partition stages;
	uint32_t drawn; /* numbers so far */
};

static int below(struct walk *walk, int count)
{
	struct rh_philox_block bits = rh_philox(0, walk->drawn++, 0, 0, 0);
	return (int)(bits.word[0] % (uint32_t)count);
}

static double share(struct walk *walk)
{
	return (double)rh_philox_unit(rh_philox(0, walk->drawn++, 1, 0, 0).word[0]);
}

static void cuts_copy(struct cuts *to, const struct cuts *from, int layers)
{
	memcpy(to->forward, from->forward, 2 * ((size_t)layers + 1));
	to->top = from->top;
}

static void cuts_of(const struct rh_partition *stages, int layers, struct cuts *out)
{
	memset(out->forward, 0, 2 * ((size_t)layers + 1));
	out->top = stages->backward[0].lo;
	for (int i = 0; i + 1 < stages->forward_stages; i++)
		out->forward[stages->forward[i].hi] = 1;
	for (int i = 1; i + 1 < stages->backward_stages; i++)
		out->backward[stages->backward[i].lo] = 1;
}

static void stages_of(const struct cuts *cuts, const struct anneal *how, struct rh_partition *out)
{
	int begin = 0, bottom = how->first_trained;
	out->forward_stages = 0;
	for (int l = 1; l <= cuts->top; l++)
		if (cuts->forward[l] || l == cuts->top) {
			out->forward[out->forward_stages++] = (struct rh_stage){begin, l};
			begin = l;
		}
	out->backward[0] = (struct rh_stage){cuts->top, how->layers};
	out->backward_stages = 1;
	begin = cuts->top;
	for (int l = cuts->top - 1; l >= bottom; l--)
		if (cuts->backward[l] || l == bottom) {
			out->backward[out->backward_stages++] = (struct rh_stage){l, begin};
			begin = l;
		}
}

/* The cuts at boundaries [lo, hi) all move by one; the one that leaves comes in at the other end. */
static void rotate(char *cut, int lo, int hi, int up)
{
	char kept = up ? cut[hi - 1] : cut[lo];
	memmove(cut + lo + up, cut + lo + !up, (size_t)(hi - lo - 1));
	cut[up ? lo : hi - 1] = kept;
}

/* A cut more or less, cuts moved along, or another fused stage. 0: nothing has changed. */
static int step(struct walk *walk)
{
	struct cuts *next = &walk->next;
	int bottom = walk->how->first_trained, kind = below(walk, 16), down = below(walk, 2), low = down ? bottom + 1 : 1;
	char *cut = down ? next->backward : next->forward;
	if (kind == 0) {
		next->top += below(walk, 2) ? 1 : -1;
		return next->top > bottom && next->top > 0 && next->top < walk->how->layers;
	}
	if (next->top - low < 1)
		return 0;
	int a = low + below(walk, next->top - low), b = low + below(walk, next->top - low);
	if (kind < 4)
		cut[a] = !cut[a];
	else if (a != b)
		rotate(cut, a < b ? a : b, (a < b ? b : a) + 1, below(walk, 2));
	return kind < 4 || a != b;
}

int anneal_cuts(const struct anneal *how, struct rh_partition *best)
{
	struct walk walk = {.how = how};
	size_t bits = (size_t)how->layers + 1;
	char *memory = rh_alloc(4 * bits, 1);
	int rc = memory ? partition_create(how->layers, &walk.stages) : -ENOMEM;
	if (rc) {
		rh_free(memory);
		return rc;
	}
	walk.now = (struct cuts){memory, memory + bits, 0};
	walk.next = (struct cuts){memory + 2 * bits, memory + 3 * bits, 0};
	cuts_of(best, how->layers, &walk.now);
	double now = best->makespan_s, cooling = pow(COLD / HOT, 1 / (double)how->moves), heat = HOT * best->makespan_s;
	for (int64_t move = 0; move < how->moves; move++, heat *= cooling) {
		cuts_copy(&walk.next, &walk.now, how->layers);
		if (!step(&walk))
			continue;
		stages_of(&walk.next, how, &walk.stages);
		double most = now - heat * log(1 - share(&walk)), seconds = how->seconds(how->context, &walk.stages, most);
		if (seconds > most)
			continue;
		cuts_copy(&walk.now, &walk.next, how->layers);
		now = seconds;
		if (seconds < best->makespan_s * (1 - 1e-9)) {
			walk.stages.makespan_s = seconds;
			partition_copy(best, &walk.stages);
		}
	}
	rh_partition_free(&walk.stages);
	rh_free(memory);
	return 0;
}
