'use strict';

// Lets a child process of a test load the engine from its source.

const { readFileSync } = require('node:fs');
const ts = require('typescript');

require.extensions['.ts'] = (module, file) => {
  const compilerOptions = { module: 'commonjs', target: 'es2022', esModuleInterop: true };
  module._compile(ts.transpileModule(readFileSync(file, 'utf8'), { compilerOptions }).outputText, file);
};
