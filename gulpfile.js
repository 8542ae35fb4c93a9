// What the TypeScript compiler does not do: the Lua scripts and the icons belong beside the compiled code.
const { src, dest, parallel } = require('gulp');

const copy = (files) => () => src(files, { base: '.', encoding: false }).pipe(dest('dist'));

exports.default = parallel(copy('engine/lua/**/*.lua'), copy('nodes/**/*.svg'));
