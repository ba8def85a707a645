/* A GGUF model split into parts, as llama-gguf-split leaves it: read by its first part, worth what the whole file is. */
#include "gguf_case.h"
#include "source_case.h"

#include "ckpt/gguf_out.h"
#include "core/log.h"
#include "model/model.h"

#define WHOLE "tests/reference/models/gguf-llama/model.gguf"

enum { PARTS = 3 };

static char dir[64];

static const char *part_path(int number, int count)
{
	static char path[96];
	snprintf(path, sizeof path, "%s/model-%05d-of-%05d.gguf", dir, number, count);
	return path;
}

static void write_tensor(struct rh_gguf_out *out, const struct rh_gguf_tensor *tensor)
{
	char *bytes = malloc((size_t)tensor->bytes);
	assert_non_null(bytes);
	check_ok(rh_file_read(tensor->file, tensor->offset, bytes, (size_t)tensor->bytes));
	check_ok(rh_gguf_out_write(out, bytes, tensor->bytes));
	check_ok(rh_gguf_out_end(out));
	free(bytes);
}

/* Part `number` of `count`: every `count`th tensor of the whole file. The first part has the metadata. */
static void write_part(const char *path, int number, int count)
{
	static const char *const none[] = {NULL};
	struct rh_gguf *whole;
	struct rh_gguf_out *out;
	check_ok(rh_gguf_open(WHOLE, &whole));
	check_ok(rh_gguf_out_create(path, &out));
	if (number == 1)
		check_ok(rh_gguf_out_copy(out, whole, none));
	check_ok(rh_gguf_out_u32(out, "split.no", number - 1));
	check_ok(rh_gguf_out_u32(out, "split.count", count));
	for (int pass = 0; pass < 2; pass++) {
		for (int64_t i = number - 1; i < rh_gguf_count(whole); i += count) {
			const struct rh_gguf_tensor *tensor = rh_gguf_at(whole, i);
			int64_t rows = tensor->rank == 2 ? tensor->shape[0] : 0;
			if (pass)
				write_tensor(out, tensor);
			else
				check_ok(rh_gguf_out_tensor(out, tensor->name, tensor->dtype, rows, tensor->shape[tensor->rank - 1]));
		}
		if (!pass)
			check_ok(rh_gguf_out_begin(out));
	}
	check_ok(rh_gguf_out_commit(out));
	rh_gguf_close(whole);
}

static int make_parts(void **state)
{
	(void)state;
	scratch_make(dir);
	for (int p = 1; p <= PARTS; p++)
		write_part(part_path(p, PARTS), p, PARTS);
	return 0;
}

static int remove_parts(void **state)
{
	(void)state;
	check_ok(rh_dir_remove(dir));
	return 0;
}

static void test_a_split_model_is_read_by_its_first_part(void **state)
{
	(void)state;
	struct rh_source *split, *whole;
	check_ok(rh_source_open(part_path(1, PARTS), &split));
	check_ok(rh_source_open(WHOLE, &whole));
	assert_int_equal(split->entries.count, whole->entries.count);
	int packed = 0;
	for (size_t i = 0; i < whole->entries.count; i++) {
		const struct source_entry *entry = &whole->entries.entry[i];
		int64_t count = entry->rows * entry->cols;
		float *a = malloc((size_t)count * 4), *b = malloc((size_t)count * 4);
		assert_true(a && b);
		check_ok(rh_source_read(split, entry->name, 0, count, RH_F32, a));
		check_ok(rh_source_read(whole, entry->name, 0, count, RH_F32, b));
		assert_memory_equal(a, b, (size_t)count * 4);
		enum rh_form form = rh_source_form(whole, &(struct rh_tensor){.name = entry->name});
		assert_int_equal(rh_source_form(split, &(struct rh_tensor){.name = entry->name}), form);
		if (form) {
			packed++;
			check_ok(rh_source_read_packed(split, entry->name, 0, entry->rows, a));
			check_ok(rh_source_read_packed(whole, entry->name, 0, entry->rows, b));
			assert_memory_equal(a, b, (size_t)rh_form_bytes(form, entry->rows, entry->cols));
		}
		free(a);
		free(b);
	}
	assert_true(packed > 5);
	rh_source_close(split);
	rh_source_close(whole);
}

static void test_parts_that_do_not_belong_together_are_refused(void **state)
{
	(void)state;
	char odd[96];
	check_refused(gguf_try(part_path(2, PARTS)), "this is part 2 of 3 of a split model; name the first, ");
	write_part(part_path(1, 2), 1, 2);
	check_refused(gguf_try(part_path(1, 2)), "model-00002-of-00002.gguf: this part of a split model is missing");
	write_part(part_path(2, 2), 2, PARTS);
	check_refused(gguf_try(part_path(1, 2)), "it says that it is part 2 of 3, not 2 of 2 as its name does");
	write_part(part_path(2, 2), 1, 2);
	check_refused(gguf_try(part_path(1, 2)), "it says that it is part 1 of 2, not 2 of 2 as its name does");
	snprintf(odd, sizeof odd, "%s/odd.gguf", dir);
	write_part(odd, 1, 2);
	check_refused(gguf_try(odd), "whose name must end in -00001-of-00002.gguf");
}

static void test_a_split_model_survives_failed_allocations(void **state)
{
	(void)state;
	scratch_starve(part_path(1, PARTS), gguf_try);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_split_model_is_read_by_its_first_part),
	                                   cmocka_unit_test(test_parts_that_do_not_belong_together_are_refused),
	                                   cmocka_unit_test(test_a_split_model_survives_failed_allocations)};
	return cmocka_run_group_tests(tests, make_parts, remove_parts);
}
