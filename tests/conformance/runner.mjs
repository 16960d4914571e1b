// Runs the suite's own client. In: a job as JSON, {suite, base, ids, dump}. Out: {tests: [...], results: {...}} as JSON.
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

const job = JSON.parse(readFileSync(0, 'utf8'))
const load = path => import(pathToFileURL(`${job.suite}/${path}`))
const { default: groups } = await load('tests/index.mjs')
const { runTests, getResults } = await load('client/runner.mjs')
const fetch = createRequire(`${job.suite}/cli.mjs`)('node-fetch')

const tests = groups.flatMap(group => group.tests)
const about = tests.map(test => ({
  id: test.id,
  kind: test.kind ?? 'required',
  browser: test.browser_only === true
}))
if (job.ids !== undefined) {
  console.log = console.error // dumps are for a reader; standard output is for the results
  const wanted = new Set(job.ids)
  const chosen = tests.filter(test => wanted.has(test.id))
  await runTests([{ tests: chosen.map(test => ({ ...test, browser_only: false, dump: job.dump })) }], fetch, false, job.base)
}
process.stdout.write(JSON.stringify({ tests: about, results: getResults() }))
