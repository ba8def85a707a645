#ifndef RH_CORE_VERSION_H
#define RH_CORE_VERSION_H

#define RH_VERSION "0.1"

/* Stands in the first line of every HTML page, SVG picture, profile, Modelfile and checksum file that the program writes. */
#define RH_MARK "Roundhouse"

#endif
