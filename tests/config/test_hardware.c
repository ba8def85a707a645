/* Hardware profiles: what is refused and how it is told, and that what is printed reads back the same. */
#include "check.h"

#include "config/config_internal.h"
#include "config/hardware.h"
#include "core/file.h"
#include "core/text.h"

#include <string.h>

static const char whole[] = "name: box\n"
                            "source: \"a data sheet, \\\"quoted\\\"\"\n"
                            "devices: 8\n"
                            "device:\n"
                            "  name: GPU\n"
                            "  memory: 24GiB\n"
                            "  reserved: 600MiB\n"
                            "  peaks: {bf16: 165.2e12, f16_f16: 330.0e12}\n"
                            "  gemm:\n"
                            "    - {product: bf16, m: 8192, n: 4096, k: 4096, fraction: 0.86}\n"
                            "    - {product: bf16, m: 64, n: 4096, k: 4096, fraction: 0.25}\n"
                            "  ops: [{op: attention, product: bf16, flops_per_s: 120.0e12, bytes_per_s: 1}]\n"
                            "  other_flops_per_s: 4e13\n"
                            "  memory_bytes_per_s: 920e9\n"
                            "  launch_s: 4e-6\n"
                            "link: {up_bytes_per_s: 25e9, down_bytes_per_s: 26e9, both_bytes_per_s: 44e9, latency_s: 1e-5, source: us}\n"
                            "switch: {devices: 2, up_bytes_per_s: 25e9}\n"
                            "host: {ram: 800GiB, dram_bytes_per_s: 150e9, cores: 28, optimizer: {plain: 90e9, split8: 40e9}}\n"
                            "nvme: {bytes: 2TB, read_bytes_per_s: 6.8e9, write_bytes_per_s: 4e9, mixed_bytes_per_s: 5e9}\n";

static void test_profile_printed_reads_back_the_same(void **state)
{
	(void)state;
	struct rh_hardware first, second;
	struct rh_text once = {0}, twice = {0};
	check_ok(rh_hardware_parse(whole, strlen(whole), "box.yaml", &first));
	assert_int_equal(first.devices, 8);
	assert_int_equal(first.device.gemms, 2);
	assert_string_equal(first.device.op[0].op, "attention");
	check_near(first.host.optimizer_bytes_per_s[RH_LAYOUT_PLAIN], 90e9, 0);
	assert_int_equal(first.pcie_switch.devices, 2);
	check_near(first.link.latency_s, 1e-5, 0);
	assert_int_equal(first.nvme.bytes, 2000000000000);
	check_ok(rh_hardware_print(&first, &once));
	check_ok(rh_hardware_parse(once.bytes, once.length, "printed.yaml", &second));
	check_ok(rh_hardware_print(&second, &twice));
	assert_string_equal(once.bytes, twice.bytes);
	assert_string_equal(first.source, second.source);
	rh_text_free(&once);
	rh_text_free(&twice);
	rh_hardware_free(&first);
	rh_hardware_free(&second);
}

static void test_fraction_is_that_of_near_points(void **state)
{
	(void)state;
	struct rh_hardware box;
	check_ok(rh_hardware_parse(whole, strlen(whole), "box.yaml", &box));
	check_near(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_ANY, 8192, 4096, 4096}), 0.86, 0);
	double near = rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_ANY, 7000, 4096, 4096});
	assert_true(near > 0.85 && near < 0.86);
	double between = rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_ANY, 724, 4096, 4096});
	check_near(between, (0.86 + 0.25) / 2, 0.01);
	check_near(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_F32, RH_GEMM_ANY, 64, 64, 64}), 1, 0);
	rh_hardware_free(&box);
}

static void test_rates_of_an_op_lie_between_its_sizes(void **state)
{
	(void)state;
	static const char text[] = "device:\n  ops:\n    - {op: glu, product: bf16, bytes_per_s: 7e9}\n"
	                           "    - {op: attention, product: bf16, size: 4096, flops_per_s: 400e9}\n"
	                           "    - {op: attention, product: bf16, size: 64, flops_per_s: 100e9}\n";
	struct rh_hardware box;
	double flops = -1, bytes = -1;
	check_ok(rh_hardware_parse(text, strlen(text), "box.yaml", &box));
	static const struct {
		double size, flops_per_s;
	} cases[] = {{64, 100e9}, {512, 200e9}, {4096, 400e9}, {1, 100e9}, {1e6, 400e9}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(rh_hardware_op_rates(&box.device, "attention", RH_PRODUCT_BF16, cases[i].size, &flops, &bytes), 1);
		check_near(flops / cases[i].flops_per_s, 1, 1e-9);
		check_near(bytes, 0, 0);
	}
	assert_int_equal(rh_hardware_op_rates(&box.device, "glu", RH_PRODUCT_BF16, 512, &flops, &bytes), 1);
	check_near(bytes, 7e9, 0);
	assert_int_equal(rh_hardware_op_rates(&box.device, "attention", RH_PRODUCT_F32, 512, &flops, &bytes), 0);
	rh_hardware_free(&box);
}

static void test_profile_that_is_wrong_says_where(void **state)
{
	(void)state;
	static const struct {
		const char *text, *line;
	} cases[] = {
	        {"devices: 2\n", "p.yaml:1: device: a profile must say what computes"},
	        {"devices: 0\n", "devices: '0' is not a whole number from 1 to 64"},
	        {"device: {memory: 1GiB, reserved: 2GiB}\n", "reserved: more than memory"},
	        {"device: {peaks: {bf17: 1}}\n", "unknown key 'bf17'"},
	        {"device:\n  gemm: [{product: f32, m: 1, n: 1}]\n", "p.yaml:2: a measured product needs"},
	        {"device:\n  gemm: [{product: x, m: 1, n: 1}]\n", "product: expected f32"},
	        {"device:\n  gemm: 3\n", "gemm: expected a list"},
	        {"device:\n  ops: [{product: f32}]\n", "op: which one?"},
	        {"device: {name: [a]}\n", "name: expected text"},
	        {"device: {name: a}\nlink: {up_bytes_per_s: -1}\n", "p.yaml:2: up_bytes_per_s: '-1' is not a number"},
	        {"device: {name: a}\nhost: {optimizer: {split: x}}\n", "split: 'x' is not a number"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct rh_hardware box;
		int rc = rh_hardware_parse(cases[i].text, strlen(cases[i].text), "p.yaml", &box);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), cases[i].line))
			fail_msg("'%s' is not in: %s", cases[i].line, rh_error(rc));
	}
	struct rh_hardware box;
	int rc = rh_hardware_find("no-such-box", &box);
	assert_int_equal(rc, -ENOENT);
	assert_non_null(strstr(rh_error(rc), "no-such-box"));
}

/* Byte for byte, each of them and no other. */
static void test_built_in_profiles_are_those_of_the_examples(void **state)
{
	(void)state;
	struct rh_names files = {0};
	check_ok(rh_dir_list("examples/hardware", &files));
	assert_true(files.count > 0);
	size_t built_in = 0;
	for (const struct config_profile *profile = config_profiles; profile->name; profile++, built_in++) {
		char path[256];
		struct rh_bytes file;
		snprintf(path, sizeof path, "examples/hardware/%s.yaml", profile->name);
		check_ok(rh_file_load(path, &file));
		assert_string_equal(profile->text, file.bytes);
		rh_bytes_free(&file);
	}
	assert_int_equal(built_in, files.count);
	rh_names_free(&files);
}

static void test_profile_mutated_is_taken_or_refused(void **state)
{
	(void)state;
	uint32_t seed = 1;
	for (int i = 0; i < 4000; i++) {
		char text[sizeof whole];
		memcpy(text, whole, sizeof whole);
		for (int k = 0; k < 2; k++) {
			seed = seed * 1664525u + 1013904223u;
			text[(seed >> 8) % (sizeof whole - 1)] = (char)(seed >> 24);
		}
		struct rh_hardware box;
		if (!rh_hardware_parse(text, sizeof whole - 1, "p.yaml", &box))
			rh_hardware_free(&box);
	}
	rh_error_clear();
}

static void test_machine_without_profile_is_assumed(void **state)
{
	(void)state;
	struct rh_hardware box;
	int assumed;
	setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
	check_ok(rh_hardware_local(2, 1 << 30, &box, &assumed));
	assert_int_equal(assumed, 1);
	assert_int_equal(box.host.cores, 2);
	assert_true(box.device.peak[RH_PRODUCT_F32] > 0);
	rh_hardware_free(&box);
}

static void test_fraction_is_that_of_points_of_the_same_form(void **state)
{
	(void)state;
	struct rh_hardware box;
	struct rh_text text = {0};
	static const char given[] = "device:\n  name: gpu\n  peaks: {bf16: 100e12}\n  gemm:\n"
	                            "    - {product: bf16, form: nt, m: 64, n: 64, k: 64, fraction: 0.5}\n"
	                            "    - {product: bf16, form: tn, m: 64, n: 64, k: 64, fraction: 0.2}\n";
	static const char wrong[] = "device:\n  name: gpu\n  gemm: [{product: f32, form: no, m: 1, n: 1, k: 1, fraction: 1}]\n";
	check_ok(rh_hardware_parse(given, sizeof given - 1, "p.yaml", &box));
	check_near(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_NT, 9, 9, 9}), 0.5, 1e-12);
	check_near(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_TN, 9, 9, 9}), 0.2, 1e-12);
	check_near(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_NN, 9, 9, 9}), 0.35, 1e-12);
	check_ok(rh_hardware_print(&box, &text));
	assert_non_null(strstr(text.bytes, "{product: bf16, form: tn, m: 64,"));
	rh_text_free(&text);
	rh_hardware_free(&box);
	assert_int_equal(rh_hardware_parse(wrong, sizeof wrong - 1, "p.yaml", &box), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "form: expected nn, nt, tn or tt"));
	rh_error_clear();
}

static void test_rates_that_are_not_given_are_those_of_16_bits(void **state)
{
	(void)state;
	struct rh_hardware box;
	static const char text[] =
	        "device:\n  name: gpu\n  peaks: {bf16: 100e12}\n  gemm: [{product: bf16, m: 64, n: 64, k: 64, fraction: 0.5}]\n";
	check_ok(rh_hardware_parse(text, sizeof text - 1, "p.yaml", &box));
	assert_true(rh_hardware_peak(&box.device, RH_PRODUCT_F16_F16) == 100e12);
	assert_true(rh_hardware_peak(&box.device, RH_PRODUCT_F8) == 0);
	assert_true(rh_hardware_peak(&box.device, RH_PRODUCT_F32) == 0);
	assert_true(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_F8, RH_GEMM_ANY, 9, 9, 9}) == 0.5);
	assert_true(rh_hardware_gemm_fraction(&box.device, (struct rh_gemm_shape){RH_PRODUCT_F32, RH_GEMM_ANY, 9, 9, 9}) == 1);
	rh_hardware_free(&box);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_profile_printed_reads_back_the_same),
	        cmocka_unit_test(test_fraction_is_that_of_near_points),
	        cmocka_unit_test(test_fraction_is_that_of_points_of_the_same_form),
	        cmocka_unit_test(test_rates_of_an_op_lie_between_its_sizes),
	        cmocka_unit_test(test_profile_that_is_wrong_says_where),
	        cmocka_unit_test(test_built_in_profiles_are_those_of_the_examples),
	        cmocka_unit_test(test_profile_mutated_is_taken_or_refused),
	        cmocka_unit_test(test_machine_without_profile_is_assumed),
	        cmocka_unit_test(test_rates_that_are_not_given_are_those_of_16_bits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
