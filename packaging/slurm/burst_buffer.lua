-- dlio-fs as a burst buffer of Slurm: BurstBufferType=burst_buffer/lua, this file beside slurm.conf. docs/slurm.md has the rest.
--
--   #BB_LUA jobdw slow=/shared/home/me/run7 pool=dlio capacity=200GiB
--   #BB_LUA stage_in source=/shared/home/me/run7/data
--   #BB_LUA stage_out destination=/shared/home/me/run7/checkpoints
--
-- The fast tier is in the compute node, and this runs on the controller: it checks what a job asks for, notes that where the nodes
-- see it (`requests`), and waits until all nodes of the job are done. prolog.sh mounts and stages, epilog.sh drains, and the last one of
-- the job removes the note. The controller asks nothing else: `dlio-fs status --fleet` would have to run as the job's user, on a machine
-- that sees the users' file system; and SAFE of a moment says nothing about a node that has not ended yet.
--
-- Written for Lua 5.1 and later. Slurm calls each function in a new Lua state, with strings only. slurm_bb_job_process, _pools and
-- _paths are called by slurmctld while it holds locks: they read or write one small file and run no program.

-- The site's to change. The first two are also in common.sh.
local requests = "/shared/requests"
local mount_root = "/mnt/job"
-- What all fast tiers together offer to `pool=dlio capacity=...`. Slurm counts it for the whole cluster.
local pool_gibibytes = 1000

-- Keys that each directive may have, and the values of those that DataWarp has and that mean nothing else here.
local KEYS = {
    jobdw = { slow = true, pool = true, capacity = true, type = { scratch = true }, access_mode = { private = true } },
    stage_in = { source = true, destination = true, type = { file = true, directory = true } },
    stage_out = { source = true, destination = true, type = { file = true, directory = true } },
}

-- Nothing that a shell, a pattern of `dlio-fs stage`, or Slurm's own replacement of symbols would read as something else.
local function is_path(text)
    if #text > 1024 or not text:match("^/[%w/._+=@,-]+$") or text:match("//") or text:match("/$") then
        return false
    end
    for name in text:gmatch("[^/]+") do
        if name == "." or name == ".." then
            return false
        end
    end
    return true
end

-- What is left of `path` below `dir`, with its slash; nil if it is not there.
local function below(dir, path)
    if path == dir then
        return ""
    end
    return path:sub(1, #dir + 1) == dir .. "/" and path:sub(#dir + 1) or nil
end

-- Slurm hands a directive on as it is written: no shell has read it. `$DLIO_MOUNT` is no variable here but a name of ours.
local function is_unexpanded(value)
    return value:sub(1, 1) == "~" or value:gsub("^%$DLIO_MOUNT", ""):find("$", 1, true) ~= nil
end

local function parse_line(line)
    local words = {}
    for word in line:gmatch("%S+") do
        words[#words + 1] = word
    end
    local kind = words[2]
    local known = kind and KEYS[kind]
    if words[1] ~= "#BB_LUA" or not known then
        return nil, "a directive is jobdw, stage_in or stage_out"
    end
    local found = { kind = kind }
    for i = 3, #words do
        local key, value = words[i]:match("^([%w_]+)=(.+)$")
        if not key or not known[key] then
            return nil, kind .. " does not know " .. words[i]
        elseif found[key] then
            return nil, kind .. " has " .. key .. "= twice"
        elseif type(known[key]) == "table" and not known[key][value] then
            return nil, kind .. " does not know " .. words[i]
        elseif is_unexpanded(value) then
            return nil, kind .. ": " .. words[i] .. ": no shell reads a directive, so ~ and variables are not expanded; write them out"
        end
        found[key] = value
    end
    return found
end

-- `key` names a place in the slow directory. The mount shows it at the same place: if the job names that, too, it must be that.
local function place(found, slow, key, other)
    local path = found[key]
    if not path or not is_path(path) then
        return nil, found.kind .. " needs " .. key .. "=, an absolute path of plain characters"
    end
    local rest = below(slow, path)
    if not rest then
        return nil, found.kind .. ": " .. path .. " is not below slow=" .. slow
    end
    if found[other] and found[other] ~= "$DLIO_MOUNT" .. rest then
        return nil, found.kind .. ": " .. path .. " is at $DLIO_MOUNT" .. rest .. " in the mount and nowhere else"
    end
    return rest
end

-- What a job script asks for, or nil and why that cannot be. As Slurm does, looks at the lines in front of the first command.
local function parse(script)
    local file, why = io.open(script)
    if not file then
        return nil, why
    end
    local all, job = {}, nil
    for line in file:lines() do
        if line ~= "" and line:sub(1, 1) ~= "#" then
            break
        end
        if line:sub(1, 7) == "#BB_LUA" then
            local found, wrong = parse_line(line)
            if not found then
                file:close()
                return nil, wrong
            end
            if found.kind ~= "jobdw" then
                all[#all + 1] = found
            elseif job then
                file:close()
                return nil, "there are two jobdw"
            else
                job = found
            end
        end
    end
    file:close()
    if not job then
        return nil, "jobdw is missing"
    end
    if not job.slow or not is_path(job.slow) then
        return nil, "jobdw needs slow=, the absolute path of a directory of yours on the slow tier, of plain characters"
    end
    local asked = { slow = job.slow, stage_in = {} }
    for _, found in ipairs(all) do
        local rest
        if found.kind == "stage_in" then
            rest, why = place(found, job.slow, "source", "destination")
            asked.stage_in[#asked.stage_in + 1] = rest
        else
            -- All of the slow directory is waited for, whatever part of it the job names.
            rest, why = place(found, job.slow, "destination", "source")
        end
        if not rest then
            return nil, why
        end
    end
    return asked
end

local function request_of(job_id)
    return requests .. "/" .. assert(job_id:match("^%d+$"), "no number of a job")
end

local function exists(path)
    local file = io.open(path)
    if file then
        file:close()
    end
    return file ~= nil
end

-- All at once: a node finds the whole file or none.
local function write(path, text)
    local file, why = io.open(path .. ".new", "w")
    if not file then
        return false, why
    end
    local written, failed = file:write(text)
    local closed, not_closed = file:close()
    if not written or not closed then
        return false, failed or not_closed
    end
    return os.rename(path .. ".new", path)
end

function slurm_bb_job_process(job_script, uid, gid)
    local asked, why = parse(job_script)
    if not asked then
        return slurm.ERROR, "#BB_LUA: " .. why
    end
    return slurm.SUCCESS
end

function slurm_bb_pools()
    return slurm.SUCCESS,
        '{"pools": [{"id": "dlio", "quantity": ' .. pool_gibibytes .. ', "granularity": 1073741824}]}'
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local asked, why = parse(job_script)
    if not asked then
        return slurm.ERROR, why
    end
    local lines = "slow " .. asked.slow .. "\n"
    for _, path in ipairs(asked.stage_in) do
        lines = lines .. "stage_in " .. path .. "\n"
    end
    local written, failed = write(request_of(job_id), lines)
    if not written then
        return slurm.ERROR, "cannot note what the job asks for: " .. failed
    end
    return slurm.SUCCESS
end

-- Nothing yet: while a job is pending it has no node, and so no fast tier. The prolog stages.
function slurm_bb_data_in(job_id, job_script, uid, gid)
    return slurm.SUCCESS
end

-- Newer versions of Slurm ask whether both are done: when they have returned, they are.
function slurm_bb_test_data_in(job_id, job_script, uid, gid)
    return slurm.SUCCESS
end

function slurm_bb_test_data_out(job_id, job_script, uid, gid)
    return slurm.SUCCESS
end

function slurm_bb_real_size(job_id, uid, gid)
    return slurm.SUCCESS
end

function slurm_bb_paths(job_id, job_script, path_file, uid, gid)
    local asked, why = parse(job_script)
    if not asked then
        return slurm.ERROR, why
    end
    local variables = "DLIO_MOUNT=" .. mount_root .. "/" .. job_id .. "\nDLIO_SLOW=" .. asked.slow .. "\n"
    local file, failed = io.open(path_file, "w")
    if not file then
        return slurm.ERROR, failed
    end
    file:write(variables)
    file:close()
    return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, job_script, uid, gid)
    return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, job_script, uid, gid)
    return slurm.SUCCESS
end

-- Returns once the epilog of the job's last node has removed the request: everything of all nodes is on the slow tier then.
-- StageOutTimeout of burst_buffer.conf is the limit.
function slurm_bb_data_out(job_id, job_script, uid, gid)
    local request = request_of(job_id)
    while exists(request) do
        local ended = os.execute("sleep 1")
        -- Lua 5.1 gives the number, later ones `true`.
        if ended ~= 0 and ended ~= true then
            return slurm.ERROR, "stopped while a node still drains"
        end
    end
    return slurm.SUCCESS
end

-- `hurry`: the job never ran. Otherwise a request that is still there says that a node has something left: its epilog needs it.
function slurm_bb_job_teardown(job_id, job_script, hurry, uid, gid)
    if hurry == "true" then
        os.remove(request_of(job_id))
    end
    return slurm.SUCCESS
end

-- scontrol show bbstat. Names all jobs: 22.05 does not hand on what stands behind it.
function slurm_bb_get_status(uid, gid, ...)
    local said = ""
    -- No word of it is a user's.
    local list = io.popen("ls '" .. requests .. "'")
    for name in list:lines() do
        if name:match("^%d+$") then
            said = said .. "job " .. name .. " waits, runs or drains\n"
        end
    end
    list:close()
    return slurm.SUCCESS, said == "" and "no job has a burst buffer\n" or said
end
