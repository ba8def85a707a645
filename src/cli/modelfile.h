/* The file from which Ollama makes a model of a GGUF file that the program wrote. */
#ifndef RH_CLI_MODELFILE_H
#define RH_CLI_MODELFILE_H

#include "config/config.h"

/* Writes `Modelfile` beside the GGUF file `outfile`, over one that this program wrote earlier, or with `force` over any; what else is there
 * is left alone, and a line says so. A line tells the command that reads it. */
int verb_write_modelfile(const char *outfile, int force) RH_MUST;

#endif
