/* Links by NCCL over the emulation, with a stand-in for its library (nccl_stand_in.c): the conformance cases, and NCCL's own. */
#include "link/conformance.h"

#include "core/hooks.h"
#include "link/nccl.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* Over TLS, as between boxes. */
static void open_nccl(struct ends *ends)
{
	struct ends through;
	ends_tcp_for(&ends_keys, &(struct rh_tcp_options){0}, NULL, ENDS_MESSAGES + 1, &through);
	for (int i = 0; i < 2; i++)
		check_ok(rh_nccl_link_open(
		        &(struct rh_nccl_options){.host_link = through.end[i], .gpu = i, .is_upper = i, .messages = ENDS_MESSAGES},
		        &ends->end[i]));
}

static const struct instance all[] = {{"nccl, stand-in", 0, open_nccl}};

/* Several pieces; the ends expect messages of two sizes. */
static void test_nccl_sizes_that_differ_are_told(void **state)
{
	(void)state;
	enum { BYTES = 9 << 20 };
	struct ends ends;
	char *out = calloc(1, BYTES), *in = calloc(1, BYTES);
	open_nccl(&ends);
	fill(out, BYTES, 3);
	check_ok(rh_link_receive(ends.end[1], 1, in, BYTES));
	check_ok(rh_link_send(ends.end[0], 1, out, BYTES));
	check_ok(ends.end[1]->ops->wait(ends.end[1], 0, 1));
	assert_true(is_filled(in, BYTES, 3));
	check_ok(rh_link_receive(ends.end[1], 2, in, BYTES - 1));
	check_ok(rh_link_send(ends.end[0], 2, out, BYTES));
	assert_int_equal(ends.end[1]->ops->wait(ends.end[1], 0, 2), -EPROTO);
	assert_non_null(strstr(rh_error(-EPROTO), "the peer sends 9437184 bytes where 9437183 are expected"));
	assert_int_equal(ends.end[0]->ops->wait(ends.end[0], 2, 0), -ECONNABORTED);
	ends_close(&ends);
	free(out);
	free(in);
}

/* Where the system registers no more than pieces, and not all of them. */
static void test_nccl_messages_lie_across_registrations(void **state)
{
	(void)state;
	enum { BYTES = 9 << 20, PIECE = (1 << 20) + 4096 };
	struct ends ends;
	char *out = aligned_alloc(4096, BYTES), *in = aligned_alloc(4096, BYTES);
	open_nccl(&ends);
	fill(out, BYTES, 3);
	memset(in, 0, BYTES);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(cudaHostRegister(out + i * PIECE, PIECE, cudaHostRegisterPortable), cudaSuccess);
		assert_int_equal(cudaHostRegister(in + (i + 1) * PIECE, PIECE, cudaHostRegisterPortable), cudaSuccess);
	}
	check_ok(rh_link_receive(ends.end[1], 1, in, BYTES));
	check_ok(rh_link_send(ends.end[0], 1, out, BYTES));
	check_ok(ends.end[1]->ops->wait(ends.end[1], 0, 1));
	assert_true(is_filled(in, BYTES, 3));
	ends_close(&ends);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(cudaHostUnregister(out + i * PIECE), cudaSuccess);
		assert_int_equal(cudaHostUnregister(in + (i + 1) * PIECE), cudaSuccess);
	}
	free(out);
	free(in);
}

static void test_nccl_without_its_library_says_what_to_install(void **state)
{
	(void)state;
	struct ends through;
	struct rh_link *none;
	ends_tcp_for(NULL, &(struct rh_tcp_options){0}, NULL, 2, &through);
	assert_int_equal(rh_nccl_link_open(&(struct rh_nccl_options){.host_link = through.end[0], .messages = 1}, &none), -ENOENT);
	assert_non_null(strstr(rh_error(-ENOENT), "libnccl2"));
	rh_link_close(through.end[1]);
}

int main(void)
{
	char path[512];
	const char *build = getenv("RH_BUILD");
	alarm(200);
	instances = all;
	instance_count = 1;
	const struct CMUnitTest first[] = {cmocka_unit_test(test_nccl_without_its_library_says_what_to_install)};
	setenv(RH_HOOK_NCCL, "/nowhere/libnccl.so", 1);
	int failed = cmocka_run_group_tests(first, NULL, NULL);
	snprintf(path, sizeof path, "%s/nccl-stand-in.so", build ? build : "build/release");
	setenv(RH_HOOK_NCCL, path, 1);
	const struct CMUnitTest tests[] = {CONFORMANCE, cmocka_unit_test(test_nccl_sizes_that_differ_are_told),
	                                   cmocka_unit_test(test_nccl_messages_lie_across_registrations)};
	return failed + cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
