# SPDX-License-Identifier: Apache-2.0
# kernel_symbols.cmake: each instruction set's object of the cpu backend defines its table of functions and nothing else
# that the linker could share: an inline function compiled for AVX-512 must not end up in code for every processor.
# cmake -DNM=nm -DARCHIVE=libcynosure_backend_cpu.a -P kernel_symbols.cmake
cmake_minimum_required(VERSION 3.22)
execute_process(COMMAND ${NM} --extern-only --defined-only ${ARCHIVE} OUTPUT_VARIABLE output RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "nm failed on ${ARCHIVE}")
endif()

set(tables "")
string(REPLACE "\n" ";" lines "${output}")
foreach(line IN LISTS lines)
  if(line MATCHES "^(.+\\.o(bj)?):$")
    set(member "${CMAKE_MATCH_1}")
  elseif(member MATCHES "^isa_" AND line MATCHES " ([A-Za-z]) (.+)$")
    set(kind "${CMAKE_MATCH_1}")
    set(symbol "${CMAKE_MATCH_2}")
    if(NOT symbol MATCHES "^_ZN8cynosure3cpu[0-9]+k(Portable|Avx2|Avx512|Amx|EmulatedTile)KernelsE$")
      message(FATAL_ERROR "${member} defines ${symbol} (${kind}), which another object may use")
    endif()
    list(APPEND tables "${member}")
  endif()
endforeach()
if(NOT "isa_portable.cpp.o" IN_LIST tables)
  message(FATAL_ERROR "no table of functions was found in ${ARCHIVE}")
endif()
