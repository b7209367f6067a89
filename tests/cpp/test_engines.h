#pragma once
// The parts of the test program of csrc/engines.

void test_attention();
void test_kernels();
void test_functions();
void test_programs();
void test_random_programs();
void test_isa_rows();
