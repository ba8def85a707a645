/* The doctor: what it reads of made-up machines, what it says is wrong with them, what it measures of this one, and the profile it writes.
 */
#include "folder.h"
#include "made_up.h"

#include "core/hooks.h"
#include "core/log.h"
#include "core/text.h"
#include "machine/doctor.h"
#include "machine/machine.h"

#include <string.h>
#include <unistd.h>

static const int64_t mib = 1 << 20, gib = 1 << 30;

#define CARD "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/"
#define SSD  "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0/"

static void link_to(const struct root *root, const char *target, const char *path)
{
	char from[512], to[512];
	snprintf(from, sizeof from, "%s%s", root->dir, target);
	snprintf(to, sizeof to, "%s%s", root->dir, path);
	assert_int_equal(symlink(from, to), 0);
}

/* A workstation with nothing wrong: 64 GiB, a 4090 with 16 lanes, an NVMe drive with 4. */
static void root_open(struct root *root)
{
	root_make(root);
	put(root, "/proc/cpuinfo", "processor\t: 0\nmodel name\t: Big Processor 9000\n");
	put(root, "/proc/meminfo",
	    "MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\nSwapTotal: 8388608 kB\nSwapFree: 8388608 kB\n"
	    "HugePages_Total: 4\nHugePages_Free: 3\nHugepagesize: 2048 kB\n");
	put(root, "/proc/loadavg", "0.10 0.20 0.30 1/234 5678\n");
	put(root, "/proc/self/limits",
	    "Limit                     Soft Limit           Hard Limit           Units\n"
	    "Max locked memory         unlimited            unlimited            bytes\n");
	put(root, "/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
	put(root, "/proc/driver/nvidia/version",
	    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n");
	put(root, "/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ: 99\n");
	put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
	put(root, CARD "class", "0x030000\n");
	put(root, CARD "vendor", "0x10de\n");
	put(root, CARD "current_link_speed", "2.5 GT/s PCIe\n");
	put(root, CARD "max_link_speed", "16.0 GT/s PCIe\n");
	put(root, CARD "current_link_width", "16\n");
	put(root, CARD "max_link_width", "16\n");
	put(root, CARD "numa_node", "-1\n");
	put(root, CARD "../max_link_width", "16\n");
	put(root, CARD "../max_link_speed", "16.0 GT/s PCIe\n");
	put(root, SSD "class", "0x010802\n");
	put(root, SSD "vendor", "0x144d\n");
	put(root, SSD "current_link_width", "4\n");
	put(root, SSD "max_link_width", "4\n");
	put(root, "/sys/bus/pci/devices/none", "");
	link_to(root, "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", "/sys/bus/pci/devices/0000:01:00.0");
	link_to(root, "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0", "/sys/bus/pci/devices/0000:02:00.0");
	put(root, "/sys/block/nvme0n1/size", "1953525168\n");
	put(root, "/sys/block/nvme0n1/device/model", "Fast Drive 990          \n");
	put(root, "/sys/block/nvme0n1/device/address", "0000:02:00.0\n");
	put(root, "/sys/block/sda/size", "1000\n");
	put(root, "/sys/block/sda/queue/rotational", "1\n");
	put(root, "/sys/block/loop0/size", "1000\n");
}

static const struct doctor_measured good = {.build = "cuda",
                                            .kind = "cuda",
                                            .address = "0000:01:00.0",
                                            .copies = {25e9, 26e9, 45e9, 1e-5, 25e9, 1, 1},
                                            .drive = {6e9, 4e9, 5e9, 1, "nvme0n1"}};

/* What is said of the machine with something changed: exactly one thing, which holds all of `parts`. */
static void says(const struct root *root, const struct doctor_measured *measured, const char *about, const char *what, const char *mend)
{
	struct doctor_facts facts;
	static struct doctor_advices advices;
	rh_doctor_look(root->dir, &facts);
	rh_doctor_advise(&facts, measured, &advices);
	for (int i = 0; i < advices.count; i++)
		if (!about || strcmp(advices.item[i].about, about))
			fail_msg("it also says: %s", advices.item[i].finding);
	if (!about)
		return;
	assert_int_equal(advices.count, 1);
	if (!strstr(advices.item[0].finding, what) || !strstr(advices.item[0].mend, mend))
		fail_msg("it says '%s', mend '%s'", advices.item[0].finding, advices.item[0].mend);
}

static void test_look_reads_a_machine(void **state)
{
	(void)state;
	struct root root;
	struct doctor_facts f;
	root_open(&root);
	rh_doctor_look(root.dir, &f);
	assert_string_equal(f.processor, "Big Processor 9000");
	assert_true(f.cores > 0 && f.packages > 0 && f.nodes > 0 && *f.isa);
	assert_int_equal(f.ram_bytes, 64 * gib);
	assert_int_equal(f.available_bytes, 60 * gib);
	assert_int_equal(f.locked_bytes, -1);
	assert_int_equal(f.hugepages_free, 3);
	assert_int_equal(f.hugepage_bytes, 2 * mib);
	assert_string_equal(f.transparent, "madvise");
	assert_string_equal(f.nvidia_driver, "550.54.14");
	assert_int_equal(f.gpus, 1);
	assert_string_equal(f.gpu[0].name, "NVIDIA GeForce RTX 4090");
	assert_string_equal(f.gpu[0].link.address, "0000:01:00.0");
	assert_int_equal(f.gpu[0].link.lanes, 16);
	assert_int_equal(f.gpu[0].link.slot_lanes, 16);
	check_near(f.gpu[0].link.card_speed, 16, 0);
	check_near(f.gpu[0].link.speed, 2.5, 0);
	assert_int_equal(f.drives, 2);
	assert_string_equal(f.drive[0].name, "nvme0n1");
	assert_string_equal(f.drive[0].model, "Fast Drive 990");
	assert_int_equal(f.drive[0].bytes, 1953525168ll * 512);
	assert_int_equal(f.drive[0].link.lanes, 4);
	assert_true(f.drive[1].spins);
	check_near(doctor_pcie_bytes_per_s(16, 16), 31.5e9, 0.1e9);
	check_near(doctor_pcie_bytes_per_s(2.5, 1), 0.25e9, 0);
	root_close(&root);
}

static void test_look_at_nothing_says_nothing(void **state)
{
	(void)state;
	struct doctor_facts f;
	static struct doctor_advices advices;
	struct doctor_measured none = {0};
	rh_doctor_look("/nowhere", &f);
	assert_int_equal(f.gpus + f.drives, 0);
	rh_doctor_advise(&f, &none, &advices);
	for (int i = 0; i < advices.count; i++)
		print_error("%s\n", advices.item[i].finding);
	assert_int_equal(advices.count, 0);
}

static void test_a_good_machine_gets_no_advice(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	says(&root, &good, NULL, NULL, NULL);
	root_close(&root);
}

static void test_each_fault_is_said_with_its_mend(void **state)
{
	(void)state;
	static const struct {
		const char *path, *text, *about, *what, *mend;
	} faults[] = {
	        {"/proc/self/limits", "Max locked memory         8388608      8388608      bytes\n", "memlock",
	         "only 8.0 MiB of memory may be locked: buffers cannot be registered for the drive", "memlock unlimited"},
	        {"/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", NULL, NULL, NULL}, /* some are reserved */
	        {"/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 8388608 kB\n", "memory", "8.0 GiB of 64.0", "ps -eo rss"},
	        {"/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\nSwapTotal: 8388608 kB\nSwapFree: 4194304 kB\n", "swap",
	         "4.0 GiB", "sudo swapoff -a"},
	        {"/proc/sys/vm/overcommit_memory", "2\n", "overcommit", "is 2", "sudo sysctl vm.overcommit_memory=0"},
	        {"/proc/sys/kernel/io_uring_disabled", "2\n", "io_uring", "refuses io_uring:", "sudo sysctl kernel.io_uring_disabled=0"},
	        {"/proc/sys/kernel/io_uring_disabled", "1\n", "io_uring", "to ordinary users", "sudo sysctl kernel.io_uring_disabled=0"},
	        {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n", "governor", "powersave", "cpupower frequency-set"},
	        {"/proc/loadavg", "900.0 1 1 1/2 3\n", "load", "900.0 programs were running", "top"},
	        {CARD "current_link_width", "8\n", "pcie-lanes", "RTX 4090 at 0000:01:00.0 uses 8 PCIe lanes of the 16", "reseat"},
	        {SSD "current_link_width", "2\n", "pcie-lanes", "Fast Drive 990 at 0000:02:00.0 uses 2 PCIe lanes of the 4", "reseat"},
	        {"/proc/driver/nvidia/version", "", "driver", "no driver", "apt install nvidia-driver"},
	};
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		struct root root;
		root_open(&root);
		put(&root, faults[i].path, faults[i].text);
		says(&root, &good, faults[i].about, faults[i].what, faults[i].mend);
		root_close(&root);
	}
}

static void test_faults_of_several_files(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	put(&root, CARD "current_link_width", "4\n");
	put(&root, CARD "../max_link_width", "4\n");
	says(&root, &good, "pcie-lanes", "its slot has no more", "move it to a slot with 16 lanes");
	put(&root, CARD "max_link_width", "255\n"); /* a virtual machine's, which has no link */
	says(&root, &good, NULL, NULL, NULL);
	root_close(&root);

	root_open(&root); /* intel_pstate's powersave is fast */
	put(&root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
	put(&root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
	says(&root, &good, NULL, NULL, NULL);
	put(&root, "/proc/self/limits", "Max locked memory         65536      65536      bytes\n");
	put(&root, "/proc/self/status", "CapEff:\t000001ffffffffff\n"); /* root: no limit counts */
	says(&root, &good, NULL, NULL, NULL);
	put(&root, "/proc/self/cgroup", "0::/a/b\n");
	put(&root, "/sys/fs/cgroup/a/b/memory.max", "17179869184\n");
	put(&root, "/sys/fs/cgroup/a/b/memory.current", "1048576\n");
	says(&root, &good, "cgroup", "may have 16.0 GiB of the machine's 64.0", "MemoryMax=infinity");
	root_close(&root);

	root_open(&root);
	put(&root, "/proc/self/cgroup", "0::/\n");
	put(&root, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
	says(&root, &good, "cpu-quota", "0.5 of", "--cpus");
	root_close(&root);

	root_open(&root);
	put(&root, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
	put(&root, "/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\n");
	says(&root, &good, "hugepages", "hugepages are off", "echo madvise");
	root_close(&root);
}

/* A card without a driver, or with a program built without CUDA: a run that names no device says that it is on the CPU, and why. */
static void test_a_card_that_is_not_used_is_told(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	const char *hidden = getenv("CUDA_VISIBLE_DEVICES");
	char kept_hidden[256];
	snprintf(kept_hidden, sizeof kept_hidden, "%s", hidden ? hidden : "");
	for (int i = 0; i < 3; i++) { /* no card, a card, a card that is hidden */
		struct rh_log_kept kept = {0}, *before = rh_log_keep(&kept);
		setenv(RH_HOOK_MACHINE_ROOT, i ? root.dir : "/nowhere", 1);
		if (i == 2)
			setenv("CUDA_VISIBLE_DEVICES", "", 1);
		else
			unsetenv("CUDA_VISIBLE_DEVICES");
		assert_string_equal(rh_machine_device_for(rh_fail(-ENODEV, "no driver")), "cpu:1");
		(void)rh_log_keep(before);
		assert_int_equal(kept.first != NULL, i == 1);
		rh_log_forget(&kept);
	}
	unsetenv(RH_HOOK_MACHINE_ROOT);
	if (hidden)
		setenv("CUDA_VISIBLE_DEVICES", kept_hidden, 1);
	else
		unsetenv("CUDA_VISIBLE_DEVICES");
	root_close(&root);
}

static void test_what_was_measured_is_judged(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	struct doctor_measured bad = good;
	bad.copies.up = 6e9;
	says(&root, &bad, "pcie-speed", "6.0 GB/s of the 31.5", "lspci -vv -s 0000:01:00.0");
	bad = good;
	bad.copies.tried = 8 * gib;
	bad.copies.registered = 2 * gib;
	says(&root, &bad, "registered", "only 2.0 of 8.0 GiB", ".wslconfig"); /* ulimit -l is no cure: drivers do not count against it */
	bad = good;
	bad.has_time_limit = 1;
	says(&root, &bad, "display", "drives a display", "--device cuda:N");
	put(&root, "/dev/dxg", "");
	says(&root, &good, "wsl", "through Windows", "max_vram");
	char path[512];
	snprintf(path, sizeof path, "%s/dev/dxg", root.dir);
	assert_int_equal(unlink(path), 0);
	bad = good;
	bad.drive.read = 0.5e9;
	says(&root, &bad, "drive", "nvme0n1 reads 0.50", "--nvme_dirs");
	snprintf(bad.drive.name, sizeof bad.drive.name, "sda");
	says(&root, &bad, "drive", "it spins", "lsblk");
	bad = good;
	bad.build = NULL;
	bad.kind = "cpu";
	says(&root, &bad, "build", "built without CUDA", "make CUDA=1");
	root_close(&root);
}

static void test_shipped_profiles_are_whole(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		int devices;
	} shipped[] = {{"rtx4090x8", 8}, {"rtx4090x1", 1},      {"rtx4090x2", 2}, {"rtx3090x2", 2},
	               {"rtx5090x1", 1}, {"rtx4060ti-16gb", 1}, {"a800x8", 8},    {"h100x1", 1}};
	for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
		struct rh_hardware h;
		check_ok(rh_hardware_find(shipped[i].name, &h));
		assert_string_equal(h.name, shipped[i].name);
		assert_int_equal(h.devices, shipped[i].devices);
		assert_true(h.source && h.device.source && h.link.source && h.host.source && (!h.nvme.bytes || h.nvme.source));
		assert_true(h.device.peak[RH_PRODUCT_BF16] > 0 && h.device.peak[RH_PRODUCT_F32] > 0 && h.device.gemms && h.device.ops);
		double large = rh_hardware_gemm_fraction(&h.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_ANY, 8192, 4096, 4096});
		double small = rh_hardware_gemm_fraction(&h.device, (struct rh_gemm_shape){RH_PRODUCT_BF16, RH_GEMM_ANY, 128, 4096, 4096});
		assert_true(large > 0.6 && large < 1 && small < large);
		assert_true(h.link.up_bytes_per_s > 1e10 && h.link.both_bytes_per_s < 2.1 * h.link.up_bytes_per_s);
		assert_true(h.host.dram_bytes_per_s > h.link.up_bytes_per_s && h.host.cores > 0 && h.host.ram > h.device.memory);
		for (int l = 0; l < RH_LAYOUTS; l++)
			assert_true(h.host.optimizer_bytes_per_s[l] > 0 && h.host.optimizer_bytes_per_s[l] <= h.host.dram_bytes_per_s);
		rh_hardware_free(&h);
	}
}

/* ---- what it measures ---- */

static const struct doctor_probe small = {.hidden = 64,
                                          .intermediate = 128,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 16,
                                          .vocab = 256,
                                          .layers = 2,
                                          .tokens = 32,
                                          .documents = 2,
                                          .head_rows = 8,
                                          .dtype = RH_F32};

/* A report on this machine's first CPU device, in little. */
static void measure(struct rh_doctor_report *report)
{
	struct rh_devices devices;
	struct rh_pool *pool;
	void *base;
	*report = (struct rh_doctor_report){.devices = 1, .measured.kind = "cpu"};
	rh_doctor_look("", &report->facts);
	struct doctor_probe lora = small;
	lora.lora_r = 4;
	lora.dtype = RH_BF16;
	lora.qk_norm = 1;
	struct doctor_place place = {.grain = rh_device_gpu_grain()};
	int64_t bytes = doctor_probe_bytes(&small, &place.grain), more = doctor_probe_bytes(&lora, &place.grain);
	assert_true(bytes > 0 && more > 0);
	bytes = bytes > more ? bytes : more;
	bytes = bytes > 4 * mib ? bytes : 4 * mib;
	check_ok(rh_devices_open("cpu:1", 1, bytes, &devices));
	check_ok(devices.device[0]->ops->reserve(devices.device[0], bytes, &base));
	check_ok(doctor_measure_copies(&devices, &base, 2 * mib, &report->measured.copies));
	place.device = devices.device[0];
	place.base = base;
	place.bytes = bytes;
	struct doctor_samples full = {0}, adapter = {0};
	check_ok(doctor_probe_run(&place, &small, 2, &full));
	check_ok(doctor_probe_run(&place, &lora, 1, &adapter));
	check_ok(doctor_probe_run(&place, &small, 1, &full));
	assert_int_equal(full.runs, 3);
	check_ok(doctor_samples_reduce(&full, &report->ops));
	check_ok(doctor_samples_reduce(&adapter, &report->ops));
	assert_true(report->ops.usual_s > 0 && report->ops.taken_s > 0);
	doctor_samples_free(&full);
	doctor_samples_free(&adapter);
	rh_devices_close(&devices);
	check_ok(rh_pool_create(1, &pool));
	check_ok(doctor_measure_host(pool, 16 * mib, &report->host));
	for (int l = 0; l < RH_LAYOUTS; l++)
		check_ok(doctor_measure_optimizer(pool, 65536, RH_BF16, (enum rh_state_layout)l, &report->optimizer[l]));
	check_ok(doctor_measure_optimizer(pool, 65536, RH_F32, RH_LAYOUT_PLAIN, &report->optimizer_f32));
	rh_pool_destroy(pool);
}

/* Two ops, three to one, in eight passes at two speeds; one pass is held up throughout, and in another one op is. */
static void test_op_times_are_shares_of_a_usual_pass(void **state)
{
	(void)state;
	enum { RUNS = 8 };
	static const double pass[RUNS] = {1, 2, 1, 2, 9, 2, 1, 2};
	struct rh_op op[2] = {{.kind = RH_OP_GEMM}, {.kind = RH_OP_FILL}};
	double seconds[RUNS * 2];
	for (int n = 0; n < RUNS; n++) {
		seconds[2 * n] = 0.75 * pass[n] + (n == 6 ? 8 : 0);
		seconds[2 * n + 1] = 0.25 * pass[n];
	}
	struct doctor_samples samples = {.op = op, .seconds = seconds, .ops = 2, .runs = RUNS};
	struct doctor_op_times times = {0};
	check_ok(doctor_samples_reduce(&samples, &times));
	assert_int_equal(times.count, 2);
	check_near(times.item[0].seconds, 0.75 * 10 / 6, 1e-12);
	check_near(times.item[1].seconds, 0.25 * 10 / 6, 1e-12);
	check_near(times.usual_s, 8 * 10.0 / 6, 1e-12);
	check_near(times.taken_s, 28, 1e-12);
	doctor_op_times_free(&times);
}

static int count_of(const struct rh_doctor_report *report, enum rh_op_kind kind)
{
	int count = 0;
	for (size_t i = 0; i < report->ops.count; i++)
		count += report->ops.item[i].op.kind == kind;
	return count;
}

static void test_measuring_sees_every_op_of_training(void **state)
{
	(void)state;
	static struct rh_doctor_report report;
	measure(&report);
	static const enum rh_op_kind kinds[] = {RH_OP_GEMM,
	                                        RH_OP_RMSNORM,
	                                        RH_OP_RMSNORM_BACKWARD,
	                                        RH_OP_ROPE,
	                                        RH_OP_ATTENTION,
	                                        RH_OP_ATTENTION_BACKWARD,
	                                        RH_OP_GLU,
	                                        RH_OP_GLU_BACKWARD,
	                                        RH_OP_EMBEDDING,
	                                        RH_OP_EMBEDDING_BACKWARD,
	                                        RH_OP_HEAD_LOSS,
	                                        RH_OP_LORA_LOW,
	                                        RH_OP_LORA_PART,
	                                        RH_OP_LORA_A_GRADIENT};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!count_of(&report, kinds[i]))
			fail_msg("no %s was timed", rh_op_info(kinds[i])->name);
	for (size_t i = 0; i < report.ops.count; i++)
		assert_true(report.ops.item[i].seconds > 0);
	assert_true(report.measured.copies.up > 0 && report.measured.copies.down > 0 && report.measured.copies.both > 0);
	assert_true(report.measured.copies.latency_s > 0 && report.host.read > 0 && report.host.copy > 0 && report.host.core_copy > 0);
	rh_doctor_free(&report);
}

static void print(const struct rh_hardware *hardware, struct rh_text *text)
{
	check_ok(rh_hardware_print(hardware, text));
}

static void test_a_profile_survives_saving(void **state)
{
	(void)state;
	static struct rh_doctor_report report;
	struct rh_hardware hardware, again;
	struct rh_text first = {0}, second = {0};
	measure(&report);
	report.measured.drive = good.drive;
	report.devices = 4;
	report.measured.copies.all_up = report.measured.copies.up; /* four share one */
	report.device_bytes = 24 * gib;
	report.device_reserved_bytes = gib;
	check_ok(rh_doctor_profile(&report, &hardware));
	assert_true(hardware.device.gemms > 4 && hardware.device.ops > 10);
	assert_true(hardware.device.peak[RH_PRODUCT_F32] > 0 && hardware.device.peak[RH_PRODUCT_BF16] > 0);
	for (size_t i = 0; i < hardware.device.gemms; i++)
		assert_true(hardware.device.gemm[i].fraction > 0 && hardware.device.gemm[i].fraction <= 1);
	assert_int_equal(hardware.pcie_switch.devices, 4);
	assert_false(hardware.device.on_host_cores);
	print(&hardware, &first);
	check_ok(rh_hardware_parse(first.bytes, first.length, "saved.yaml", &again));
	print(&again, &second);
	assert_string_equal(first.bytes, second.bytes);
	assert_int_equal(again.device.gemms, hardware.device.gemms);
	assert_int_equal(again.device.ops, hardware.device.ops);
	assert_int_equal(again.device.memory, 24 * gib);
	check_near(again.link.up_bytes_per_s / hardware.link.up_bytes_per_s, 1, 1e-3);
	rh_hardware_free(&hardware);
	report.measured.copies.all_up = 0.95 * report.devices * report.measured.copies.up; /* each has its own */
	check_ok(rh_doctor_profile(&report, &hardware));
	assert_int_equal(hardware.pcie_switch.devices, 0);
	rh_text_free(&first);
	rh_text_free(&second);
	rh_hardware_free(&again);
	rh_hardware_free(&hardware);
	rh_doctor_free(&report);
}

static void test_a_profile_on_the_host_has_its_cores(void **state)
{
	(void)state;
	static struct rh_doctor_report report;
	struct rh_hardware hardware;
	measure(&report);
	check_ok(rh_doctor_profile(&report, &hardware));
	assert_true(hardware.device.on_host_cores);
	assert_int_equal(hardware.device.memory, 0);
	assert_int_equal(hardware.host.cores, report.facts.cores);
	check_near(hardware.host.optimizer_bytes_per_s[RH_LAYOUT_PLAIN], report.optimizer_f32, 0);
	assert_int_equal(hardware.nvme.bytes, 0);
	rh_hardware_free(&hardware);
	rh_doctor_free(&report);
}

static void test_a_drive_is_measured_and_nothing_stays(void **state)
{
	(void)state;
	struct doctor_drive_rates rates;
	char dir[] = "/var/tmp/rh-doctor-XXXXXX", *dirs[] = {dir}, *nowhere[] = {(char[]){"/nowhere"}};
	assert_non_null(mkdtemp(dir));
	int rc = doctor_measure_drive(dirs, 1, 24 * mib, 0.2, &rates);
	if (rc == -EINVAL) {
		check_ok(rh_dir_remove(dir));
		check_skip("the drive under /var/tmp: %s", rh_error(rc));
	}
	check_ok(rc);
	assert_true(rates.read > 0 && rates.write > 0 && rates.mixed > 0 && rates.free_bytes > 0);
	check_folder_is_empty(dir);
	check_ok(rh_dir_remove(dir));
	assert_int_equal(doctor_measure_drive(nowhere, 1, 24 * mib, 0.2, &rates), -ENOENT);
	assert_non_null(strstr(rh_error(-ENOENT), "/nowhere"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_look_reads_a_machine),
	        cmocka_unit_test(test_look_at_nothing_says_nothing),
	        cmocka_unit_test(test_a_good_machine_gets_no_advice),
	        cmocka_unit_test(test_each_fault_is_said_with_its_mend),
	        cmocka_unit_test(test_faults_of_several_files),
	        cmocka_unit_test(test_a_card_that_is_not_used_is_told),
	        cmocka_unit_test(test_what_was_measured_is_judged),
	        cmocka_unit_test(test_shipped_profiles_are_whole),
	        cmocka_unit_test(test_op_times_are_shares_of_a_usual_pass),
	        cmocka_unit_test(test_measuring_sees_every_op_of_training),
	        cmocka_unit_test(test_a_profile_survives_saving),
	        cmocka_unit_test(test_a_profile_on_the_host_has_its_cores),
	        cmocka_unit_test(test_a_drive_is_measured_and_nothing_stays),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
