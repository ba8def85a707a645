/* The table of algorithms: none is searched for twice as long as all fit, whatever the keys' hashes; else the least recently used goes. */
#include "check.h"

#include "cuda/choices.h"

static struct choice_key key_of(int64_t rows, int64_t cols)
{
	struct blas_product product = {.m = cols, .n = rows, .k = 64, .type_a = RH_BF16, .type_b = RH_BF16, .output = RH_BF16};
	product.a.ld = product.b.ld = 64;
	product.ldd = cols;
	return choice_key_of(&product);
}

/* Each product of rows [1, rows] once, in an order that returns to each; the number of searches since before. */
static int64_t walk(struct choices *choices, int64_t rows, int64_t products)
{
	int64_t before = choices_misses(choices);
	for (int64_t row = 1; row <= rows; row++)
		for (int64_t p = 1; p <= products; p++) {
			struct choice_key key = key_of(row, p);
			int known;
			int64_t *algorithm = choices_find(choices, &key, &known);
			if (known)
				assert_int_equal(*algorithm, row * 1000 + p);
			*algorithm = row * 1000 + p;
		}
	return choices_misses(choices) - before;
}

/* 2200 lengths of 25 products: 55000 of 65536 places. */
static void test_choices_that_fit_are_searched_for_once(void **state)
{
	(void)state;
	struct choices *choices = choices_create();
	assert_non_null(choices);
	assert_int_equal(walk(choices, 2200, 25), 2200 * 25);
	assert_int_equal(walk(choices, 2200, 25), 0);
	assert_int_equal(choices_evicted(choices), 0);
	choices_destroy(choices);
}

/* More than fit: each walk searches again, and what is found is never another's. */
static void test_choices_beyond_their_room_are_searched_for_again(void **state)
{
	(void)state;
	struct choices *choices = choices_create();
	assert_non_null(choices);
	int64_t all = 4096 * 25, room = CHOICE_SETS * CHOICE_WAYS;
	assert_int_equal(walk(choices, 4096, 25), all);
	assert_in_range(choices_evicted(choices), all - room, all - room * 99 / 100);
	int64_t again = walk(choices, 4096, 25);
	assert_true(again > all - room && again <= all);
	choices_destroy(choices);
}

/* The products of a length that comes back again and again stay, however many other lengths come between. */
static void test_choices_in_use_are_not_evicted(void **state)
{
	(void)state;
	struct choices *choices = choices_create();
	assert_non_null(choices);
	int64_t searched = 0;
	for (int64_t row = 100; row < 12000; row += 100) {
		int known;
		for (int64_t p = 1; p <= 25; p++) { /* the length in use */
			struct choice_key key = key_of(1, p);
			choices_find(choices, &key, &known);
			searched += !known;
		}
		for (int64_t p = 0; p < 2500; p++) {
			struct choice_key key = key_of(row + p % 100, 1 + p / 100);
			choices_find(choices, &key, &known);
		}
	}
	assert_true(choices_evicted(choices) > 100000);
	assert_int_equal(searched, 25);
	choices_destroy(choices);
}

static void test_choice_forgotten_is_searched_for_again(void **state)
{
	(void)state;
	struct choices *choices = choices_create();
	assert_non_null(choices);
	struct choice_key key = key_of(3, 5);
	int known;
	choices_find(choices, &key, &known);
	assert_int_equal(known, 0);
	choices_forget(choices, &key);
	choices_find(choices, &key, &known);
	assert_int_equal(known, 0);
	choices_find(choices, &key, &known);
	assert_int_equal(known, 1);
	assert_int_equal(choices_misses(choices), 2);
	choices_destroy(choices);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_choices_that_fit_are_searched_for_once),
	        cmocka_unit_test(test_choices_beyond_their_room_are_searched_for_again),
	        cmocka_unit_test(test_choices_in_use_are_not_evicted),
	        cmocka_unit_test(test_choice_forgotten_is_searched_for_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
