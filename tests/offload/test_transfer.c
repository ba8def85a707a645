/* Bulk among activations: what is asked of the packing, on random queues; and a copy engine that serves it. */
#include "check.h"
#include "offload/transfer.h"

#include <string.h>

static const struct rh_transfer_limits limits = {RH_TRANSFER_LEAST, RH_TRANSFER_MOST};

enum { ITEMS = 40, WINDOWS = 24, PIECES = 4096 };

struct queue {
	int64_t bytes[ITEMS];
	int items, gaps;
	int64_t total;
	struct rh_transfer_piece piece[PIECES];
	int64_t load[WINDOWS];
	int pieces;
};

/* Tensors of all sizes: nothing, a few bytes, norms, matrices larger than any piece. */
static void fill(struct queue *queue, uint64_t *seed)
{
	static const int64_t scale[] = {1, 1000, 100000, 20000000, 300000000};
	queue->items = (int)(check_random(seed) % (ITEMS + 1));
	queue->gaps = 1 + (int)(check_random(seed) % WINDOWS);
	queue->total = 0;
	int largest = 1 + (int)(check_random(seed) % 5);
	for (int i = 0; i < queue->items; i++) {
		queue->bytes[i] = check_random(seed) % scale[check_random(seed) % (uint32_t)largest];
		queue->total += queue->bytes[i];
	}
	assert_true(rh_transfer_pieces_most(limits, queue->total, queue->items, queue->gaps) <= PIECES);
	queue->pieces = rh_transfer_lay(limits, queue->bytes, queue->items, queue->gaps, queue->piece, queue->load);
	assert_true(queue->pieces <= rh_transfer_pieces_most(limits, queue->total, queue->items, queue->gaps));
}

static void check_every_byte_once_in_order(const struct queue *queue)
{
	int64_t seen[ITEMS] = {0}, load[WINDOWS] = {0};
	static char taken[ITEMS][PIECES];
	memset(taken, 0, sizeof taken);
	int64_t unit = rh_transfer_piece_bytes(limits, queue->total, queue->gaps);
	for (int p = 0; p < queue->pieces; p++) {
		const struct rh_transfer_piece *piece = &queue->piece[p], *before = p ? piece - 1 : NULL;
		assert_in_range(piece->item, 0, queue->items - 1);
		assert_in_range(piece->gap, 0, queue->gaps - 1);
		assert_true(piece->bytes > 0 && piece->bytes <= unit && piece->first % unit == 0);
		assert_true(piece->first >= 0 && piece->first <= queue->bytes[piece->item] - piece->bytes);
		assert_true(piece->bytes == unit || piece->first + piece->bytes == queue->bytes[piece->item]);
		assert_false(taken[piece->item][piece->first / unit]++); /* pieces lie on a grid: none twice is no overlap */
		seen[piece->item] += piece->bytes;
		load[piece->gap] += piece->bytes;
		if (before && before->gap == piece->gap)
			assert_true(before->item < piece->item || (before->item == piece->item && before->first < piece->first));
		else if (before)
			assert_true(before->gap < piece->gap);
	}
	assert_memory_equal(seen, queue->bytes, (size_t)queue->items * sizeof *seen);
	assert_memory_equal(load, queue->load, (size_t)queue->gaps * sizeof *load);
}

static void check_bounds(const struct queue *queue)
{
	int64_t largest = 0, most = 0;
	for (int p = 0; p < queue->pieces; p++)
		largest = queue->piece[p].bytes > largest ? queue->piece[p].bytes : largest;
	for (int w = 0; w < queue->gaps; w++)
		most = queue->load[w] > most ? queue->load[w] : most;
	double gaps = queue->gaps, share = (double)queue->total / gaps;
	assert_true((double)most <= share + (1 - 1 / gaps) * (double)largest + 1e-6);
	/* big tensors are split: nothing is larger than a gap's share, unless that is below a copy's worth */
	assert_true(largest <= RH_TRANSFER_MOST && ((double)largest <= share + 256 || largest <= RH_TRANSFER_LEAST));
}

static void test_lay_random_queues_meets_the_bounds(void **state)
{
	(void)state;
	static struct queue queue;
	uint64_t seed = check_seed();
	int64_t pieces = 0;
	for (int run = 0; run < 5000; run++) {
		fill(&queue, &seed);
		check_every_byte_once_in_order(&queue);
		check_bounds(&queue);
		pieces += queue.pieces;
	}
	printf("5000 queues, %lld pieces\n", (long long)pieces);
}

/* Against the best packing of few pieces, found by trying all. */
static int64_t best(const int64_t *bytes, int count, int gaps, int64_t *load, int at)
{
	int64_t most = 0, least = INT64_MAX;
	if (at == count) {
		for (int w = 0; w < gaps; w++)
			most = load[w] > most ? load[w] : most;
		return most;
	}
	for (int w = 0; w < gaps; w++) {
		load[w] += bytes[at];
		int64_t got = best(bytes, count, gaps, load, at + 1);
		load[w] -= bytes[at];
		least = got < least ? got : least;
	}
	return least;
}

static void test_lay_small_tensors_is_within_lpts_bound_of_the_best(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double worst = 0;
	for (int run = 0; run < 300; run++) {
		int64_t bytes[8], load[3], scratch[3] = {0}, most = 0;
		struct rh_transfer_piece piece[64];
		int items = 4 + (int)(check_random(&seed) % 5), gaps = 2 + (int)(check_random(&seed) % 2);
		for (int i = 0; i < items; i++)
			bytes[i] = 1 + check_random(&seed) % RH_TRANSFER_LEAST; /* none is split */
		assert_int_equal(rh_transfer_lay(limits, bytes, items, gaps, piece, load), items);
		for (int w = 0; w < gaps; w++)
			most = load[w] > most ? load[w] : most;
		double ratio = (double)most / (double)best(bytes, items, gaps, scratch, 0);
		assert_true(ratio <= 4.0 / 3 - 1.0 / (3 * gaps) + 1e-9);
		worst = ratio > worst ? ratio : worst;
	}
	printf("worst of 300 against the best packing: %.4f\n", worst);
}

/* One copy engine, as a direction of PCIe is: it serves whole copies, in the order in which they become ready. Activation m is ready when
 * micro-batch m - 2 is computed; pieces of gap w when activation w has arrived. */
static void test_no_activation_waits_for_more_than_one_piece(void **state)
{
	(void)state;
	enum { ACTIVATION = 3 << 20 };
	static struct queue queue;
	uint64_t seed = check_seed();
	int64_t longest_paced = 0, longest_plain = 0;
	for (int run = 0; run < 500; run++) {
		fill(&queue, &seed);
		int64_t compute = 2 * ACTIVATION + queue.total / queue.gaps; /* in bytes of the engine's time: a little to spare */
		for (int paced = 0; paced < 2; paced++) {
			int64_t now = 0, computed[WINDOWS + 2] = {0}, slack[WINDOWS];
			int p = 0, m = 0, arrived = 0;
			int64_t end = 0;
			while (m < queue.gaps || p < queue.pieces) {
				int64_t ready = m < queue.gaps ? (m < 2 ? 0 : computed[m - 2]) : INT64_MAX;
				int may = p < queue.pieces && (!paced || queue.piece[p].gap < arrived);
				if (m < queue.gaps && (ready <= now || !may)) {
					now = ready > now ? ready : now;
					slack[m] = now - ready; /* what it waited for the engine */
					now += ACTIVATION;
					end = (end > now ? end : now) + compute;
					computed[m] = end;
					arrived = ++m;
				} else if (paced) {
					now += queue.piece[p++].bytes;
				} else { /* a stage sent tensor by tensor, each as one copy */
					for (int item = queue.piece[p].item; p < queue.pieces && queue.piece[p].item == item; p++)
						now += queue.piece[p].bytes;
				}
			}
			for (int k = 2; k < queue.gaps; k++) { /* the first two are sent at once, one behind the other */
				int64_t *longest = paced ? &longest_paced : &longest_plain;
				*longest = slack[k] > *longest ? slack[k] : *longest;
				if (paced)
					assert_true(slack[k] <= RH_TRANSFER_MOST);
			}
		}
	}
	printf("longest wait of an activation: %.1f MiB of copies; %.1f where tensors go whole\n", (double)longest_paced / 1048576,
	       (double)longest_plain / 1048576);
	assert_true(longest_paced < longest_plain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_lay_random_queues_meets_the_bounds),
	        cmocka_unit_test(test_lay_small_tensors_is_within_lpts_bound_of_the_best),
	        cmocka_unit_test(test_no_activation_waits_for_more_than_one_piece),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
