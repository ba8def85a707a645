/* The table of algorithms: nothing is looked for twice as long as it fits, whatever the keys' hashes. */
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
	int64_t before = choices_searched(choices);
	for (int64_t row = 1; row <= rows; row++)
		for (int64_t p = 1; p <= products; p++) {
			struct choice_key key = key_of(row, p);
			int known;
			int64_t *algorithm = choices_find(choices, &key, &known);
			if (known)
				assert_int_equal(*algorithm, row * 1000 + p);
			*algorithm = row * 1000 + p;
		}
	return choices_searched(choices) - before;
}

/* 1024 lengths of 25 products: 25600 of 65536 places. */
static void test_choices_that_fit_are_looked_for_once(void **state)
{
	(void)state;
	struct choices *choices = choices_create();
	assert_non_null(choices);
	assert_int_equal(walk(choices, 1024, 25), 1024 * 25);
	assert_true(walk(choices, 1024, 25) <= 1024 * 25 / 200); /* a set of 16 that more fall into: one in ten thousand */
	choices_destroy(choices);
}

/* More than fit: each walk looks again, and what is found is never another's. */
static void test_choices_beyond_their_room_are_looked_for_again(void **state)
{
	(void)state;
	struct choices *choices = choices_create();
	assert_non_null(choices);
	int64_t all = 4096 * 25;
	assert_int_equal(walk(choices, 4096, 25), all);
	int64_t again = walk(choices, 4096, 25);
	assert_true(again > all - CHOICE_SETS * CHOICE_WAYS && again <= all);
	choices_destroy(choices);
}

static void test_choice_forgotten_is_looked_for_again(void **state)
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
	assert_int_equal(choices_searched(choices), 2);
	choices_destroy(choices);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_choices_that_fit_are_looked_for_once),
	        cmocka_unit_test(test_choices_beyond_their_room_are_looked_for_again),
	        cmocka_unit_test(test_choice_forgotten_is_looked_for_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
