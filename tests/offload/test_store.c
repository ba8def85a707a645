#include "check.h"
#include "tensor.h"

#include "core/alloc.h"
#include "core/arena.h"
#include "core/float16.h"
#include "core/split.h"
#include "offload/memory.h"
#include "offload/store_internal.h"

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static struct rh_tensor small[] = {TENSOR("a.weight", 3, 5, 0, 1, 2), TENSOR("a.norm", 1, 7, 64, 0, 2)};
static struct rh_tensor large[] = {TENSOR("b.weight", 1000, 100, 128, 1, 2)};

static struct rh_block spec(char *name, struct rh_tensor *tensor, int tensors, int64_t elements, int trainable, int uses)
{
	return (struct rh_block){
	        .name = name, .elements = elements, .trainable = trainable, .uses = uses, .tensor = tensor, .tensors = tensors};
}

static struct rh_store *create(const struct rh_block *specs, int count, enum rh_dtype dtype, int crosses, struct rh_pool *pool)
{
	struct rh_store *store = NULL;
	check_ok(rh_store_create(specs, count, &(struct rh_store_options){.dtype = dtype, .crosses_rounds = crosses}, pool, &store));
	return store;
}

/* The process's address space in bytes. */
static int64_t mapped_bytes(void)
{
	char text[64] = {0};
	int file = open("/proc/self/statm", O_RDONLY);
	assert_true(file >= 0 && read(file, text, sizeof text - 1) > 0);
	close(file);
	return strtoll(text, NULL, 10) * sysconf(_SC_PAGESIZE);
}

static void test_reserve_maps_whole_pages_zeroed(void **state)
{
	(void)state;
	const int64_t sizes[] = {1, 4096, 4097, (2 << 20) + 1, 9 << 20};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct rh_arena arena;
		int64_t before = mapped_bytes();
		check_ok(rh_host_reserve(sizes[i], "a test", &arena));
		assert_int_equal(arena.capacity, rh_host_round(sizes[i]));
		assert_true(arena.capacity >= sizes[i] && arena.capacity < sizes[i] + 4096);
		assert_int_equal(mapped_bytes() - before, arena.capacity);
		assert_int_equal(arena.base[0] | arena.base[arena.capacity - 1], 0);
		memset(arena.base, 1, (size_t)arena.capacity);
		rh_host_release(&arena);
		assert_int_equal(mapped_bytes(), before);
		assert_null(arena.base);
	}
}

static void test_reserve_of_nothing_is_empty(void **state)
{
	(void)state;
	struct rh_arena arena;
	check_ok(rh_host_reserve(0, "a test", &arena));
	assert_int_equal(arena.capacity, 0);
	rh_host_release(&arena);
}

static void test_reserve_of_the_absurd_says_who(void **state)
{
	(void)state;
	struct rh_arena arena;
	const int64_t sizes[] = {INT64_C(1) << 50, INT64_MAX};
	for (int i = 0; i < 2; i++) {
		int rc = rh_host_reserve(sizes[i], "the moon", &arena);
		assert_int_equal(rc, -ENOMEM);
		assert_non_null(strstr(rh_error(rc), "the moon"));
		assert_null(strchr(rh_error(rc), '\n'));
		assert_int_equal(arena.capacity, 0);
	}
}

/* Bytes of each layout, by hand. */
static void test_bytes_follow_the_layout_table(void **state)
{
	(void)state;
	const int64_t n = 1 << 20; /* and 32 spans of 32 bytes, the whole rounded up to a page */
	struct rh_tensor whole[] = {TENSOR("w", 1024, 1024, 0, 1, 2)};
	const struct {
		enum rh_dtype dtype;
		int trainable, uses, crosses, bytes;
		enum rh_state_layout layout;
		enum rh_optim optim;
		int momentum, more; /* bytes beside those of an element */
	} cases[] = {
	        {.dtype = RH_F32, 0, 1, 0, 4},
	        {.dtype = RH_BF16, 0, 1, 0, 2},
	        {.dtype = RH_F32, 0, 2, 1, 4},
	        {.dtype = RH_F32, 1, 1, 0, 16},
	        {.dtype = RH_F32, 1, 1, 1, 16},
	        {.dtype = RH_F32, 1, 2, 0, 16},
	        {.dtype = RH_F32, 1, 2, 1, 20},
	        {.dtype = RH_BF16, 1, 1, 0, 14},
	        {.dtype = RH_BF16, 1, 1, 1, 16},
	        {.dtype = RH_BF16, 1, 2, 0, 18},
	        {.dtype = RH_BF16, 1, 2, 1, 14 + 8},
	        {.dtype = RH_BF16, 1, 1, 0, 16, RH_LAYOUT_PLAIN},
	        {.dtype = RH_BF16, 1, 1, 1, 18, RH_LAYOUT_PLAIN},
	        {.dtype = RH_F32, 1, 1, 0, 16, RH_LAYOUT_PLAIN},
	        {.dtype = RH_BF16, 1, 1, 0, 8, RH_LAYOUT_SPLIT8, .more = (1 << 20) / 256 * 4 * 2},
	        {.dtype = RH_BF16, 0, 1, 0, 2, RH_LAYOUT_SPLIT8},
	        {.dtype = RH_BF16, 1, 1, 0, 10, .optim = RH_OPTIM_LION},
	        {.dtype = RH_F32, 1, 1, 0, 8, .optim = RH_OPTIM_SGD},
	        {.dtype = RH_F32, 1, 1, 0, 12, .optim = RH_OPTIM_SGD, .momentum = 1},
	        /* rows and columns; 32 groups' sums of columns, factors, squares */
	        {.dtype = RH_BF16, 1, 1, 0, 6, .optim = RH_OPTIM_ADAFACTOR, .more = 8192 + 32 * 4096 + 4096 + 256},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_block one = spec("w", whole, 1, n, cases[i].trainable, cases[i].uses);
		struct rh_store_options options = {.dtype = cases[i].dtype,
		                                   .crosses_rounds = cases[i].crosses,
		                                   .layout = cases[i].layout,
		                                   .optim = cases[i].optim,
		                                   .momentum = cases[i].momentum};
		assert_int_equal(rh_store_bytes(&one, 1, &options),
		                 rh_host_round(cases[i].bytes * n + cases[i].more + (cases[i].trainable ? 1024 : 0)));
	}
}

static void fill(char *array, int64_t bytes, int *mark)
{
	if (array) {
		assert_int_equal((uintptr_t)array % RH_ALIGN, 0);
		memset(array, ++*mark, (size_t)bytes);
	}
}

static void expect(char *array, int64_t bytes, int *mark)
{
	if (!array)
		return;
	++*mark;
	for (int64_t i = 0; i < bytes; i++)
		assert_int_equal(array[i], *mark);
}

/* Every array takes its whole length without touching another; those said to share bytes do. */
static void test_arrays_are_aligned_and_apart(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	for (int variant = 0; variant < 8; variant++) {
		enum rh_dtype dtype = variant & 1 ? RH_BF16 : RH_F32;
		int crosses = variant >> 1 & 1, uses = (variant >> 2 & 1) + 1, size = dtype == RH_F32 ? 4 : 2;
		struct rh_block specs[] = {spec("frozen", small, 2, 77, 0, 1), spec("a", small, 2, 77, 1, 1),
		                           spec("b", large, 1, 100200, 1, uses)};
		struct rh_store *store = create(specs, 3, dtype, crosses, pool);
		assert_int_equal(rh_store_blocks(store), 3);
		assert_ptr_equal(rh_store_block(store, 2), &specs[2]);
		assert_null(rh_store_gradient(store, 0));
		assert_null(rh_store_sum(store, 0, 0));
		assert_null(store->block[0].moment[0]);
		assert_true(!rh_store_sum(store, 1, 0) == !crosses && !rh_store_sum(store, 1, 1));
		assert_true(!rh_store_sum(store, 2, 0) == !crosses && !rh_store_sum(store, 2, 1) == (uses == 1));
		for (int pass = 0, mark = 0; pass < 2; pass++, mark = 0)
			for (int b = 0; b < 3; b++) {
				int64_t n = specs[b].elements;
				void *gradient = rh_store_gradient(store, b), *sum = rh_store_sum(store, b, 0);
				void (*visit)(char *, int64_t, int *) = pass ? expect : fill;
				visit((char *)(uintptr_t)rh_store_weights(store, b), n * size, &mark);
				visit((char *)store->block[b].moment[0], n * 4, &mark);
				visit((char *)store->block[b].moment[1], n * 4, &mark);
				visit(sum, n * 4, &mark);
				visit((char *)rh_store_sum(store, b, 1), n * 4, &mark);
				int shared = sum && (dtype == RH_F32 || specs[b].uses == 1);
				assert_true((gradient == sum) == (shared || !specs[b].trainable));
				int by_head = dtype == RH_F32 && specs[b].uses == 2 && !crosses;
				assert_true((gradient && gradient == rh_store_sum(store, b, 1)) == by_head);
				if (!shared && !by_head)
					visit(gradient, n * size, &mark);
			}
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_what_is_mapped_is_what_was_said(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	struct rh_block specs[] = {spec("a", small, 2, 77, 1, 1), spec("b", large, 1, 100200, 1, 2)};
	rh_store_destroy(create(specs, 2, RH_BF16, 1, pool)); /* the allocator has what it needs now */
	for (int crosses = 0; crosses < 2; crosses++) {
		struct rh_store_options options = {.dtype = RH_BF16, .crosses_rounds = crosses};
		int64_t before = mapped_bytes();
		struct rh_store *store = create(specs, 2, RH_BF16, crosses, pool);
		assert_int_equal(mapped_bytes() - before, rh_store_bytes(specs, 2, &options));
		rh_store_destroy(store);
		assert_int_equal(mapped_bytes(), before);
	}
	rh_pool_destroy(pool);
}

static void check_split(uint32_t bits)
{
	if ((bits & 0x7f800000u) == 0x7f800000u)
		return;
	uint16_t upper = rh_split_upper(bits);
	if (rh_split_join(upper, rh_split_lower(bits)) != bits || upper != rh_f32_to_bf16_away(rh_bits_f32(bits)))
		fail_msg("pattern %08x", bits);
}

/* Every upper half with the lower halves around the rounding edges and a stride through the rest; all of them with RH_LONG. */
static void test_split_holds_every_finite_pattern(void **state)
{
	(void)state;
	if (getenv("RH_LONG"))
		for (uint64_t bits = 0; bits <= UINT32_MAX; bits++)
			check_split((uint32_t)bits);
	static const uint32_t edges[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
	for (uint32_t upper = 0; upper < 65536; upper++) {
		for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
			check_split(upper << 16 | edges[i]);
		for (uint32_t lower = upper % 601; lower < 65536; lower += 601)
			check_split(upper << 16 | lower);
	}
}

static void test_set_and_get_return_the_master(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	uint64_t seed = check_seed();
	for (int variant = 0; variant < 4; variant++) {
		enum rh_dtype dtype = variant & 1 ? RH_BF16 : RH_F32;
		int trainable = variant >> 1;
		struct rh_block one = spec("a", small, 2, 77, trainable, 1);
		struct rh_store *store = create(&one, 1, dtype, 0, pool);
		float in[7], out[7];
		uint64_t before = rh_store_version(store, 0);
		assert_true(before > 0);
		for (int i = 0; i < 7; i++)
			in[i] = i == 3 ? rh_bits_f32(0x3f808000) : i == 4 ? -FLT_MAX : check_uniform(&seed);
		check_ok(rh_store_set(store, 0, 1, 0, 7, in));
		assert_true(rh_store_version(store, 0) != before);
		check_ok(rh_store_get(store, 0, 1, 0, 7, out));
		for (int i = 0; i < 7; i++) {
			float kept = dtype == RH_F32 || trainable ? in[i] : rh_bf16_to_f32(rh_f32_to_bf16(in[i]));
			assert_true(out[i] == kept);
			if (dtype == RH_BF16)
				assert_int_equal(((const uint16_t *)rh_store_weights(store, 0))[64 + i],
				                 trainable ? rh_f32_to_bf16_away(in[i]) : rh_f32_to_bf16(in[i]));
		}
		check_ok(rh_store_get(store, 0, 1, 5, 2, out));
		assert_true(dtype == RH_BF16 || (out[0] == in[5] && out[1] == in[6]));
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_set_refuses_a_non_finite_value_whole(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	struct rh_block one = spec("a", small, 2, 77, 1, 1);
	struct rh_store *store = create(&one, 1, RH_BF16, 0, pool);
	const float bad[] = {INFINITY, -INFINITY, NAN};
	for (int i = 0; i < 3; i++) {
		float values[] = {1, 2, bad[i]}, out[3];
		uint64_t before = rh_store_version(store, 0);
		int rc = rh_store_set(store, 0, 0, 5, 3, values);
		assert_int_equal(rc, -EINVAL);
		assert_non_null(strstr(rh_error(rc), "a.weight"));
		assert_non_null(strstr(rh_error(rc), "row 1, column 2"));
		assert_int_equal(rh_store_version(store, 0), before);
		check_ok(rh_store_get(store, 0, 0, 5, 3, out));
		assert_true(out[0] == 0 && out[1] == 0);
	}
	rh_store_destroy(store);
	rh_pool_destroy(pool);
}

/* A frozen block of a matrix in Q8_0, a plain vector and a matrix in MXFP4, which lie where the model says. */
static struct rh_tensor mixed[] = {TENSOR("p.one", 4, 64, 0, 1, 2), TENSOR("p.norm", 1, 7, 256, 0, 1), TENSOR("p.two", 3, 40, 320, 1, 2)};

static struct rh_block packed_spec(enum rh_dtype dtype)
{
	struct rh_block block = spec("p", mixed, 3, 448, 0, 1);
	mixed[0].form = RH_FORM_Q8_0;
	mixed[2].form = RH_FORM_MXFP4;
	mixed[1].stored = 512;
	mixed[2].stored = 512 + rh_align_up(rh_dtype_bytes(dtype, 7), RH_ALIGN);
	block.packed_bytes = mixed[2].stored + RH_ALIGN;
	return block;
}

static void test_packed_tensors_keep_their_bytes(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	uint64_t seed = check_seed();
	for (int half = 0; half < 2; half++) {
		enum rh_dtype dtype = half ? RH_BF16 : RH_F32;
		struct rh_block one = packed_spec(dtype);
		const int tensors[] = {0, 2};
		struct rh_store *store = create(&one, 1, dtype, 0, pool);
		const struct rh_store_options *options = rh_store_options(store);
		char in[2][512], out[512];
		float norm[7], kept[7];
		assert_int_equal(rh_store_bytes(&one, 1, options), rh_host_round(one.packed_bytes));
		for (int i = 0; i < 7; i++)
			norm[i] = (float)(i - 3);
		check_ok(rh_store_set(store, 0, 1, 0, 7, norm));
		uint64_t before = rh_store_version(store, 0);
		for (int k = 0; k < 2; k++) {
			int64_t bytes = rh_block_tensor(&one, tensors[k], dtype).bytes;
			assert_int_equal(bytes, k ? 3 * 20 + 3 * 2 + 2 : 4 * 2 * 34);
			for (int64_t i = 0; i < bytes; i++)
				in[k][i] = (char)(127 * check_uniform(&seed));
			check_ok(rh_store_set_packed(store, 0, tensors[k], 5, bytes - 5, in[k] + 5));
			check_ok(rh_store_set_packed(store, 0, tensors[k], 0, 5, in[k]));
		}
		assert_true(rh_store_version(store, 0) != before);
		for (int k = 0; k < 2; k++) {
			struct rh_tensor_form form = rh_block_tensor(&one, tensors[k], dtype);
			check_ok(rh_store_get_packed(store, 0, tensors[k], 0, form.bytes, out));
			assert_memory_equal(out, in[k], (size_t)form.bytes);
			assert_memory_equal((const char *)rh_store_weights(store, 0) + form.offset, in[k], (size_t)form.bytes);
		}
		check_ok(rh_store_get(store, 0, 1, 0, 7, kept));
		assert_memory_equal(kept, norm, sizeof norm);
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_create_survives_each_failed_allocation(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	struct rh_block specs[] = {spec("a", small, 2, 77, 1, 1), spec("b", large, 1, 100200, 1, 2)};
	struct rh_store *store = NULL;
	int rc = -1;
	for (uint64_t n = 1; rc && n < 100; n++) {
		rh_alloc_fail_nth(n);
		rc = rh_store_create(specs, 2, &(struct rh_store_options){.dtype = RH_BF16, .crosses_rounds = 1}, pool, &store);
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 ? n > 1 : rc == -ENOMEM && !store);
	}
	assert_int_equal(rc, 0);
	rh_store_destroy(store);
	rh_store_destroy(NULL);
	rh_pool_destroy(pool);
}

static void test_create_of_the_absurd_says_so(void **state)
{
	(void)state;
	struct rh_pool *pool;
	check_ok(rh_pool_create(1, &pool));
	const int64_t sizes[] = {INT64_C(1) << 46, INT64_C(1) << 56, INT64_MAX};
	for (int i = 0; i < 3; i++) {
		struct rh_block specs[] = {spec("a", NULL, 0, sizes[i], 1, 2), spec("b", NULL, 0, sizes[i], 1, 2)};
		struct rh_store *store = NULL;
		int rc = rh_store_create(specs, 2, &(struct rh_store_options){.dtype = RH_F32, .crosses_rounds = 1}, pool, &store);
		assert_int_equal(rc, -ENOMEM);
		assert_null(store);
		assert_true(strlen(rh_error(rc)) > 20 && !strchr(rh_error(rc), '\n'));
	}
	rh_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_reserve_maps_whole_pages_zeroed),      cmocka_unit_test(test_reserve_of_nothing_is_empty),
	        cmocka_unit_test(test_reserve_of_the_absurd_says_who),       cmocka_unit_test(test_bytes_follow_the_layout_table),
	        cmocka_unit_test(test_arrays_are_aligned_and_apart),         cmocka_unit_test(test_what_is_mapped_is_what_was_said),
	        cmocka_unit_test(test_split_holds_every_finite_pattern),     cmocka_unit_test(test_set_and_get_return_the_master),
	        cmocka_unit_test(test_set_refuses_a_non_finite_value_whole), cmocka_unit_test(test_create_survives_each_failed_allocation),
	        cmocka_unit_test(test_create_of_the_absurd_says_so),         cmocka_unit_test(test_packed_tensors_keep_their_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
