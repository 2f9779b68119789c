/* board_file_test.c - board.conf: what it says, what is wrong with one, and which device it is for. */
#include "board_file.h"
#include "harness.h"
#include <keel/clock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char root[64], later[64];
static const struct keel_device_info one = {.selector = "acme:0",
                                            .platform = "Acme OpenCL",
                                            .name = "Acme One rev 3",
                                            .driver_version = "2.1.7",
                                            .kind = KEEL_DEVICE_ACCELERATOR};

static void write_file(const char *top, const char *id, const char *name, const char *text)
{
    char folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(folder, top, id));
    ck_ok(keel_mkdir_all(folder));
    ck_ok(keel_path_join(path, folder, name));
    ck_ok(keel_file_replace(path, text, strlen(text), 0600));
}

static enum keel_status read_text(const char *text, struct keel_board_file *out)
{
    char folder[KEEL_PATH_BYTES];
    write_file(root, "acme/one", "board.conf", text);
    ck_ok(keel_path_join(folder, root, "acme/one"));
    return keel_board_file_read(folder, out);
}

static void set_up(void)
{
    char list[160];
    snprintf(root, sizeof root, "/tmp/keel-boards-XXXXXX");
    snprintf(later, sizeof later, "/tmp/keel-boards-XXXXXX");
    ck_assert(mkdtemp(root) != NULL && mkdtemp(later) != NULL);
    snprintf(list, sizeof list, "%s:%s", root, later);
    ck_assert_int_eq(setenv("KEEL_BOARDS", list, 1), 0);
}

static void tear_down(void)
{
    ck_ok(keel_remove_tree(root));
    ck_ok(keel_remove_tree(later));
}

static const char whole[] = "[board]\nname = Acme's first\nkind = accelerator\n"
                            "[match]\nplatform = acme*\nname = *one*\ndriver = 2.1.*\n"
                            "[device]\nimages = 1\nbanks = 4\nbank_style = xilinx\n"
                            "[code]\nform = artifacts\nbuild_with = pocl\none_image = yes\n"
                            "[limits]\nmemory_bytes = 1073741824\ngemm_flops_s = 5000000000\n"
                            "[kernels]\ngemm.depth = 128\n"
                            "[waivers]\n3.2 = slow until rev 4 until 2027-01-31\n"
                            "[recovery]\nreset = acme-smi --reset 0\n";

START_TEST(a_board_is_said_in_one_short_file)
{
    struct keel_board_file file;
    ck_ok(read_text(whole, &file));
    ck_assert_str_eq(file.id, "acme/one");
    ck_assert_str_eq(file.name, "Acme's first");
    ck_assert_uint_eq(file.kind, 1 + KEEL_DEVICE_ACCELERATOR);
    ck_assert_uint_eq(file.image_limit, 1);
    ck_assert_uint_eq(file.memory_banks, 4);
    ck_assert_uint_eq(file.bank_style, KEEL_BANKS_XILINX);
    ck_assert_uint_eq(file.code, KEEL_BOARD_CODE_ARTIFACTS);
    ck_assert_str_eq(file.build_with, "pocl");
    ck_assert(file.one_image);
    ck_assert_uint_eq(file.limits.memory_bytes, UINT64_C(1) << 30);
    ck_assert_uint_eq(file.limits.launch_ns, 0);
    ck_assert_uint_eq(file.tunable_count, 1);
    ck_assert_str_eq(file.tunables[0].name, "gemm.depth");
    ck_assert_uint_eq(file.tunables[0].value, 128);
    ck_assert_str_eq(file.reset, "acme-smi --reset 0");
    const struct keel_board_waiver *waiver = keel_board_waiver(&file, "3.2");
    ck_assert_ptr_nonnull(waiver);
    ck_assert_str_eq(waiver->reason, "slow until rev 4");
    ck_assert_str_eq(waiver->until, "2027-01-31");
    ck_assert_ptr_null(keel_board_waiver(&file, "3.3"));
    char text[KEEL_WALL_TEXT_BYTES];
    keel_wall_text(UINT64_C(1795000000) * KEEL_NS_PER_S, text);
    ck_assert_str_eq(text, "2026-11-18T11:06:40Z");
}
END_TEST

static const struct {
    const char *text, *said;
} bad[] = {
    {"[match]\nname = x\n[code]\nartefacts = y\n",
     "board.conf:4: unknown key code.artefacts; the nearest known key is "
     "code.artifacts"},
    {"[match]\nname = x\n[kernel]\ntile = 1\n", "board.conf:4: unknown key kernel.tile"},
    {"name = x\n", "board.conf:1: name stands in no section"},
    {"[board]\nname = x\n", "set match.platform or match.name"},
    {"[match]\nname = x\nname = y\n", "was given in line 2 already"},
    {"[match]\nname = x\n[board]\nkind = fpga\n", "any|host|cpu|gpu|accelerator"},
    {"[match]\nname = x\n[device]\nbanks = 2\n", "intel or xilinx"},
    {"[match]\nname = x\n[device]\nimages = 65\n", "out of range"},
    {"[match]\nname = x\n[kernels]\na = 1\na = 2\n", "board.conf:5: kernels.a was given already"},
    {"[match]\nname = x\n[kernels]\na = big\n", "a whole number"},
    {"[match]\nname = x\n[waivers]\n3.2 = for ever\n", "no waiver is for good"},
    {"[match]\nname = x\n[waivers]\n3.2 = x until 2027-02-30\n", "no waiver is for good"},
    {"[match]\nname = x\n[waivers]\n3.2 = until 2027-02-20\n", "no waiver is for good"},
    {"[match]\nname = x\nnonsense\n", "board.conf:3"},
};

START_TEST(what_is_wrong_is_named_by_file_and_line)
{
    struct keel_board_file file;
    ck_status(read_text(bad[_i].text, &file), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), bad[_i].said) != NULL, "%s", keel_detail());
}
END_TEST

START_TEST(a_device_that_no_file_is_for_has_the_defaults)
{
    struct keel_board_file file;
    write_file(root, "acme/two", "board.conf", "[match]\nname = *two*\n");
    ck_ok(keel_board_file_find(&one, &file));
    ck_assert_str_eq(file.folder, "");
    ck_assert_uint_eq(file.code, KEEL_BOARD_CODE_AUTO);
    ck_assert_uint_eq(file.reset_s, 60);
}
END_TEST

START_TEST(the_file_that_matches_is_found_and_broken_others_do_not_matter)
{
    struct keel_board_file file;
    ck_ok(read_text(whole, &file));
    write_file(root, "acme/two", "board.conf", "[match]\nname = *two*\n[match]\nbroken = 1\n");
    write_file(root, "zeta/one", "board.conf", "broken = 1\n");
    ck_ok(keel_board_file_find(&one, &file));
    ck_assert_str_eq(file.id, "acme/one");
    write_file(root, "acme/one", "board.conf", "[match]\nname = *one*\nbroken = 1\n");
    ck_status(keel_board_file_find(&one, &file), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "acme/one/board.conf:3"));
}
END_TEST

START_TEST(two_files_for_one_device_are_both_named)
{
    struct keel_board_file file;
    ck_ok(read_text(whole, &file));
    write_file(root, "acme/other", "board.conf", "[match]\nplatform = Acme*\n");
    ck_status(keel_board_file_find(&one, &file), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "acme/one"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "acme/other"));
    ck_assert_int_eq(keel_status_exit_code(KEEL_UNSUPPORTED), 3);
}
END_TEST

START_TEST(another_driver_is_named_with_the_one_that_is_wanted)
{
    struct keel_board_file file;
    struct keel_device_info other = one;
    ck_ok(read_text(whole, &file));
    snprintf(other.driver_version, sizeof other.driver_version, "3.0");
    ck_status(keel_board_file_find(&other, &file), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "\"3.0\""));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "\"2.1.*\""));
    write_file(root, "acme/one-v3", "board.conf", "[match]\nname = *one*\ndriver = 3.*\n");
    ck_ok(keel_board_file_find(&other, &file));
    ck_assert_str_eq(file.id, "acme/one-v3");
}
END_TEST

START_TEST(an_earlier_root_takes_the_place_of_a_later_one)
{
    struct keel_board_file file;
    char folder[KEEL_PATH_BYTES];
    ck_ok(read_text(whole, &file));
    write_file(later, "acme/one", "board.conf", "[match]\nname = *one*\n");
    write_file(later, "acme/three", "board.conf", "[match]\nname = *three*\n");
    write_file(later, "acme/any", "board.conf", "[match]\nname = *\n");
    ck_ok(keel_board_file_find(&one, &file));
    ck_assert_uint_eq(file.image_limit, 1);
    ck_ok(keel_board_folder_find("acme/one", folder));
    ck_assert_ptr_eq(strstr(folder, root), folder);
    ck_ok(keel_board_folder_find("acme/three", folder));
    ck_assert_ptr_eq(strstr(folder, later), folder);
    ck_status(keel_board_folder_find("acme/four", folder), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), later));
}
END_TEST

START_TEST(tuning_counts_for_its_own_driver_and_below_what_the_board_says)
{
    struct keel_board_file file;
    ck_ok(read_text(whole, &file));
    write_file(root, "acme/one", "tune.conf",
               "[tune]\ndriver = 2.1.7\nday = 2026-11-21\n[kernels]\ngemm.depth = 256\ngemm.rows = 64\n");
    ck_ok(keel_board_tune_read(&file, &one));
    ck_assert_uint_eq(file.tunable_count, 2);
    ck_assert_uint_eq(file.tunables[0].value, 128);
    ck_assert_str_eq(file.tunables[1].name, "gemm.rows");
    struct keel_setting settings[KEEL_BOARD_TUNABLES_MAX];
    ck_ok(keel_board_settings(&file, settings));
    ck_assert_str_eq(settings[0].name, "gemm.depth");
    ck_assert_uint_eq(settings[0].value, 128);
    ck_ok(read_text(whole, &file));
    struct keel_device_info other = one;
    snprintf(other.driver_version, sizeof other.driver_version, "2.1.8");
    ck_ok(keel_board_tune_read(&file, &other));
    ck_assert_uint_eq(file.tunable_count, 1);
}
END_TEST

START_TEST(tuning_with_a_tunable_of_another_release_keeps_the_others)
{
    struct keel_board_file file;
    ck_ok(read_text(whole, &file));
    write_file(root, "acme/one", "tune.conf",
               "[tune]\ndriver = 2.1.7\n[kernels]\ngemm.groups_per_unit = 2\ngemm.rows = 64\n");
    ck_ok(keel_board_tune_read(&file, &one));
    ck_assert_uint_eq(file.tunable_count, 2);
    ck_assert_str_eq(file.tunables[1].name, "gemm.rows");
    struct keel_setting settings[KEEL_BOARD_TUNABLES_MAX];
    ck_ok(keel_board_settings(&file, settings));
    ck_assert_uint_eq(settings[1].value, 64);
    snprintf(file.tunables[0].name, sizeof file.tunables[0].name, "gemm.groups_per_unit");
    ck_status(keel_board_settings(&file, settings), KEEL_INVALID); /* a person wrote board.conf */
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "unknown key kernels.gemm.groups_per_unit; the nearest known"));
}
END_TEST

START_TEST(clblast_parameters_are_read_by_kernel_for_their_own_driver)
{
    static struct keel_board_file file;
    static struct keel_board_clblast clblast;
    static const char begin[] = "[clblast]\ndriver = 2.1.7\n[Pad]\nPAD_WPTX = 2\nPAD_WPTY = 4\n";
    char text[256];
    ck_ok(read_text(whole, &file));
    ck_ok(keel_board_clblast_read(&file, &one, &clblast));
    ck_assert_uint_eq(clblast.kernel_count, 0);
    snprintf(text, sizeof text, "%s[Copy]\nCOPY_VW = 8\n", begin);
    write_file(root, "acme/one", "clblast.conf", text);
    ck_ok(keel_board_clblast_read(&file, &one, &clblast));
    ck_assert_uint_eq(clblast.kernel_count, 2);
    const struct keel_provider_parameters *pad = &clblast.parameters[0], *copy = &clblast.parameters[1];
    ck_assert_str_eq(pad->kernel, "Pad");
    ck_assert_uint_eq(pad->count, 2);
    ck_assert_str_eq(pad->names[1], "PAD_WPTY");
    ck_assert_uint_eq(pad->values[1], 4);
    ck_assert_str_eq(copy->kernel, "Copy");
    ck_assert_uint_eq(copy->count, 1);
    ck_assert_str_eq(copy->names[0], "COPY_VW");
    ck_assert_uint_eq(copy->values[0], 8);
    struct keel_device_info other = one;
    snprintf(other.driver_version, sizeof other.driver_version, "2.1.8");
    ck_ok(keel_board_clblast_read(&file, &other, &clblast));
    ck_assert_uint_eq(clblast.kernel_count, 0);
    static const char *const wrong[] = {"PAD_WPTX = 3\n", "PAD_DIMX = -1\n", "PAD_DIMX = 8x\n",
                                        "[Copy]\nCOPY_VW = 8\n[Pad]\nPAD_DIMX = 8\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "%s%s", begin, wrong[i]);
        write_file(root, "acme/one", "clblast.conf", text);
        ck_status(keel_board_clblast_read(&file, &one, &clblast), KEEL_INVALID);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "clblast.conf:"));
    }
}
END_TEST

START_TEST(a_board_that_lives_by_artifacts_does_not_open_without)
{
    struct keel_board *board;
    struct keel_device_info info;
    if (keel_device_select("pocl", NULL, &info) != KEEL_OK)
        return;
    write_file(root, "acme/cpu", "board.conf", "[match]\nplatform = Portable*\n[code]\nform = artifacts\n");
    ck_status(keel_board_open("acme/cpu", NULL, &board), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "keel board build acme/cpu"));
    const struct keel_board_options without = {.without_code = true};
    ck_ok(keel_board_open("acme/cpu", &without, &board));
    ck_assert_str_eq(keel_board_file(board)->id, "acme/cpu");
    keel_board_close(board);
    ck_status(keel_board_open("acme/cpu:7", &without, &board), KEEL_NOT_FOUND);
    write_file(root, "acme/cpu", "board.conf", "[match]\nplatform = Portable*\ndriver = 0.1\n");
    ck_status(keel_board_open("acme/cpu", &without, &board), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), info.driver_version));
}
END_TEST

START_TEST(auto_takes_a_board_without_a_compiler_when_its_folder_has_code)
{
    struct keel_board *board;
    const char *build = getenv("BUILD");
    char layer[KEEL_PATH_BYTES];
    snprintf(layer, sizeof layer, "%s/libkeel-emulated.so", build != NULL ? build : "build");
    ck_assert_int_eq(setenv("OPENCL_LAYERS", layer, 1), 0);
    ck_assert_int_eq(setenv("EMULATED_BOARD", "fpga", 1), 0);
    write_file(root, "emulated/fpga", "board.conf", "[match]\nplatform = Emulated*\n");
    ck_ok(keel_board_open("auto", NULL, &board));
    ck_assert_int_eq(keel_device_info(keel_board_device(board))->kind, KEEL_DEVICE_HOST);
    keel_board_close(board);
    write_file(root, "emulated/fpga/artifacts", "manifest.json", "{}");
    ck_status(keel_board_open("auto", NULL, &board), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "emulated/fpga/artifacts/manifest.sum"));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_board_is_said_in_one_short_file);
    tcase_add_loop_test(tc, what_is_wrong_is_named_by_file_and_line, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, a_device_that_no_file_is_for_has_the_defaults);
    tcase_add_test(tc, the_file_that_matches_is_found_and_broken_others_do_not_matter);
    tcase_add_test(tc, two_files_for_one_device_are_both_named);
    tcase_add_test(tc, another_driver_is_named_with_the_one_that_is_wanted);
    tcase_add_test(tc, an_earlier_root_takes_the_place_of_a_later_one);
    tcase_add_test(tc, tuning_counts_for_its_own_driver_and_below_what_the_board_says);
    tcase_add_test(tc, tuning_with_a_tunable_of_another_release_keeps_the_others);
    tcase_add_test(tc, auto_takes_a_board_without_a_compiler_when_its_folder_has_code);
    tcase_add_test(tc, clblast_parameters_are_read_by_kernel_for_their_own_driver);
    tcase_add_test(tc, a_board_that_lives_by_artifacts_does_not_open_without);
}

KEEL_TEST_MAIN("board files", cases, 30)
