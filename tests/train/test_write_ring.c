/* Bytes by way of a ring: each file gets its own, in their order, whoever waits meanwhile; those that somebody waits for are copied
 * first. */
#include "check.h"

#include "weights/write_ring.h"

#include <string.h>

enum { FILES = 3, PUTS = 4000, LONGEST = 300, MOST = PUTS * LONGEST };

struct file {
	char *bytes;
	int64_t length, fails_at; /* fails_at < 0: never */
	int *order, number;       /* the number of the file written last */
};

static int take(void *user, const void *bytes, int64_t length)
{
	struct file *file = user;
	if (file->fails_at >= 0 && file->length + length > file->fails_at)
		return rh_fail(-EIO, "file %d fails", file->number);
	memcpy(file->bytes + file->length, bytes, (size_t)length);
	file->length += length;
	*file->order = file->number;
	return 0;
}

static int awaited;

static int is_awaited(void *context)
{
	(void)context;
	return awaited;
}

static void open_files(struct file file[FILES], int *order)
{
	for (int f = 0; f < FILES; f++) {
		file[f] = (struct file){.bytes = malloc(MOST), .fails_at = -1, .order = order, .number = f};
		assert_non_null(file[f].bytes);
	}
}

static void close_files(struct file file[FILES])
{
	for (int f = 0; f < FILES; f++)
		free(file[f].bytes);
}

/* Random lengths to random files, while it changes at random whether anybody waits; rings smaller than a put, and larger than all. */
static void test_write_ring_any_puts_reach_their_files_in_order(void **state)
{
	(void)state;
	static const int64_t sizes[] = {1, 37, 200, 1000, 4096, 2 * MOST};
	uint64_t seed = check_seed();
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		struct file file[FILES], expected[FILES];
		int order = -1, ignored;
		open_files(file, &order);
		open_files(expected, &ignored);
		char *memory = malloc((size_t)sizes[s]), bytes[LONGEST];
		assert_non_null(memory);
		struct rh_write_ring ring = {.bytes = memory, .size = sizes[s], .is_awaited = is_awaited};
		int64_t most = 0;
		for (int i = 0; i < PUTS; i++) {
			int f = (int)(check_random(&seed) % FILES);
			int64_t length = check_random(&seed) % LONGEST;
			for (int64_t k = 0; k < length; k++)
				bytes[k] = (char)check_random(&seed);
			awaited = check_random(&seed) % 8 ? awaited : !awaited;
			check_ok(rh_write_ring_put(&ring, take, &file[f], bytes, length));
			check_ok(take(&expected[f], bytes, length));
			memset(bytes, -1, sizeof bytes); /* they are the caller's again */
			assert_true(ring.used >= 0 && ring.used <= ring.size);
			most = ring.used > most ? ring.used : most;
		}
		assert_true(sizes[s] < 200 || most > sizes[s] / 2 || sizes[s] > MOST);
		check_ok(rh_write_ring_drain(&ring));
		assert_int_equal(ring.used, 0);
		for (int f = 0; f < FILES; f++) {
			assert_int_equal(file[f].length, expected[f].length);
			assert_memory_equal(file[f].bytes, expected[f].bytes, (size_t)file[f].length);
		}
		free(memory);
		close_files(file);
		close_files(expected);
	}
}

static void test_write_ring_copies_for_who_waits_and_writes_else(void **state)
{
	(void)state;
	struct file file[FILES];
	char memory[256], bytes[50] = "0123456789";
	int order = -1;
	open_files(file, &order);
	struct rh_write_ring ring = {.bytes = memory, .size = sizeof memory, .is_awaited = is_awaited};
	awaited = 0;
	check_ok(rh_write_ring_put(&ring, take, &file[0], bytes, sizeof bytes));
	assert_int_equal(file[0].length, sizeof bytes); /* nobody waits: at once */
	awaited = 1;
	check_ok(rh_write_ring_put(&ring, take, &file[1], bytes, sizeof bytes));
	check_ok(rh_write_ring_put(&ring, take, &file[2], bytes, sizeof bytes));
	assert_int_equal(file[1].length + file[2].length, 0);
	int64_t used = ring.used;
	check_ok(rh_write_ring_put(&ring, take, &file[2], bytes, sizeof bytes));
	check_ok(rh_write_ring_put(&ring, take, &file[2], bytes, sizeof bytes)); /* no room: the oldest makes some */
	assert_int_equal(file[1].length, sizeof bytes);
	assert_true(ring.used > used);
	awaited = 0;
	check_ok(rh_write_ring_put(&ring, take, &file[0], bytes, sizeof bytes)); /* after all that came before */
	assert_int_equal(ring.used, 0);
	assert_int_equal(file[2].length, 3 * sizeof bytes);
	assert_int_equal(order, 0);
	close_files(file);
}

static void test_write_ring_a_failed_write_is_told_and_clearing_forgets(void **state)
{
	(void)state;
	struct file file[FILES];
	char memory[512], bytes[60] = "";
	int order = -1;
	open_files(file, &order);
	file[0].fails_at = 100;
	struct rh_write_ring ring = {.bytes = memory, .size = sizeof memory, .is_awaited = is_awaited};
	awaited = 1;
	for (int i = 0; i < 3; i++)
		check_ok(rh_write_ring_put(&ring, take, &file[0], bytes, sizeof bytes));
	assert_int_equal(rh_write_ring_drain(&ring), -EIO);
	assert_string_equal(rh_error(-EIO), "file 0 fails");
	rh_write_ring_clear(&ring);
	check_ok(rh_write_ring_put(&ring, take, &file[1], bytes, sizeof bytes));
	check_ok(rh_write_ring_drain(&ring));
	assert_int_equal(file[0].length, sizeof bytes);
	assert_int_equal(file[1].length, sizeof bytes);
	close_files(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_write_ring_any_puts_reach_their_files_in_order),
	        cmocka_unit_test(test_write_ring_copies_for_who_waits_and_writes_else),
	        cmocka_unit_test(test_write_ring_a_failed_write_is_told_and_clearing_forgets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
