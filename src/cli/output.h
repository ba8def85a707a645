/* What a verb may write over. */
#ifndef RH_CLI_OUTPUT_H
#define RH_CLI_OUTPUT_H

#include "config/config.h"
#include "core/version.h"

enum verb_output { OUTPUT_GGUF, OUTPUT_HTML, OUTPUT_SVG, OUTPUT_PROFILE, OUTPUT_MODELFILE, OUTPUT_MODEL };

/* May the result of kind `kind` go to `path`, which the key `key` names? It may where nothing is there, or an empty file or directory, or
 * an earlier result of this program: a GGUF file by its key, a directory by its checksum file, other files by RH_MARK. What else is
 * there needs --force (-EEXIST). Refused always: what the command reads, the directory of a run, what is no regular file, such as a device,
 * a pipe or a link, and a file in a directory that is not there (-ENOENT) or that may not be written to. `train` asks rh_output_check
 * (checkpoint/output.h), which is stricter. */
int verb_check_output(const struct rh_config *config, const char *key, const char *path, enum verb_output kind) RH_MUST;

#endif
