/* The runtime's version, the one thing that differs between its two builds. */
const int forebay_simcudart_version = FOREBAY_SIMCUDART_VERSION;
